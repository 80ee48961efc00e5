"""Stand-ins for names: nothing that somebody called a thing of theirs is left, and all else is as before."""

from __future__ import annotations

import io
import itertools
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest

import kdissect
from kdissect.cli.main import main
from kdissect.problems import UsageError
from kdissect.rewriting.standins import StandIns, keeps
from tests import planted
from tests.conftest import CAPTURES
from tests.rewriting.test_allow_list import MARKER, exchanges

SECRET = bytes(range(32))


def safe(data: bytes, names: StandIns, folder: Path) -> bytes:
    path = folder / "in.pcap"
    path.write_bytes(data)
    out = io.BytesIO()
    kdissect.open(path).redact(out, names=names)
    return out.getvalue()


@pytest.mark.parametrize(
    "part",
    [pytest.param(range(0, 2000, 13), id="some"), pytest.param(range(2000), id="all", marks=pytest.mark.exhaustive)],
)
def test_a_marker_in_every_name_of_every_message(part: range, tmp_path: Path) -> None:
    kinds = [kind for n, kind in enumerate(planted.kinds()) if n in part]
    markers = (f"mk{n:06}z" for n in itertools.count())
    data = planted.capture(kinds, lambda: next(markers), lambda: next(markers).encode())
    names = StandIns(SECRET)
    made = safe(data, names, tmp_path)
    assert MARKER.findall(made) == []
    assert len(names.used) > 100
    before, after = exchanges(data), exchanges(made)
    for one in before:
        if one["client_id"] is not None:
            one["client_id"] = names(one["client_id"].encode()).decode()
    assert after == before


@pytest.mark.parametrize("name", ["k4_java_classic.pcap", "era_0_11_0.pcap"])
def test_tables_are_equal_but_for_names(name: str, tmp_path: Path) -> None:
    names = StandIns(SECRET)
    target = tmp_path / name
    kdissect.open(CAPTURES / name).redact(target, names=names)
    columns = {
        "exchanges": ["request_frame", "response_frame", "api", "status", "error", "latency_ms", "hold", "broker",
                      "client_id"],
        "fetch_partitions": ["partition", "fetch_offset", "high_watermark", "record_bytes", "topic"],
        "fetch_sessions": ["broker", "session_id", "requests", "end_reason"],
        "groups": ["at", "event", "generation", "assigned_partitions", "group_id", "member_id", "client_id"],
    }  # fmt: skip

    def rows(path: Path, rename: bool) -> dict[str, list[str]]:
        tables = kdissect.open(path).tables(list(columns))
        found = {}
        for table, wanted in columns.items():
            made = [row for row in tables[table].select(wanted).to_pylist() if row.get("status") != "orphan"]
            for row in made:
                for column in ("client_id", "topic", "group_id", "member_id"):
                    if rename and row.get(column):
                        row[column] = names(row[column].encode()).decode()
                row.pop("assigned_partitions", None)  # blanked: bytes of the client's own
            found[table] = sorted(map(repr, made))
        return found

    assert rows(target, rename=False) == rows(CAPTURES / name, rename=True)


def test_stand_ins() -> None:
    names = StandIns(SECRET)
    words = [f"topic-{n}".encode() for n in range(500)] + [bytes([c]) for c in range(0x61, 0x7B)] + ["Größe".encode()]
    made = [names(word) for word in words]
    assert [len(one) for one in made] == [len(word) for word in words]
    assert len(set(made)) == len(words)
    assert not set(made) & set(words[:500])
    assert [names(word) for word in words] == made
    assert names(b"x" * 1000) != b"x" * 1000
    assert StandIns(SECRET)(b"topic-1") == names(b"topic-1")
    assert StandIns.new()(b"topic-1") != names(b"topic-1")


def test_kafkas_own_words_stay() -> None:
    names = StandIns(SECRET)
    for word in ("__consumer_offsets", "broker-1-fetcher-0", "raft-client-3", "localhost", "retention.ms", "*", "2"):
        assert names(word.encode()) == word.encode()
        assert keeps(word.encode())
    for word in ("broker-1-alice", "__offsets", "consumer-orders-1", "123456", "sasl.jaas.config.alice"):
        assert names(word.encode()) != word.encode()


def test_a_key_file_keeps_them(tmp_path: Path) -> None:
    names = StandIns(SECRET)
    made = {name: names(name) for name in (b"orders", b"a", b"\xff\xfe\x80")}
    again = StandIns.loads(names.dumps())
    assert again.pairs == made
    assert (again.secret, again.taken) == (SECRET, names.taken)
    assert again(b"orders") == made[b"orders"]
    for damaged in (
        b"",
        b"{}",
        b"[1]\n",
        b'{"format": "kdissect-names-1"}',
        b"\xff",
        names.dumps().replace(b'me":', b":"),
    ):
        with pytest.raises(UsageError, match="no key file"):
            StandIns.loads(damaged)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(one) for one in arguments])
    seen = capsys.readouterr()
    return code, seen.out, seen.err


def test_redact_and_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, key, target = CAPTURES / "k4_python_kafka.pcap", tmp_path / "names", tmp_path / "safe.pcap"
    code, _, said = run(capsys, "redact", source, "--names", key, "-o", target)
    assert code == 0
    assert re.search(r"\d+ names in [\d,]+ places got stand-ins", said)
    assert stat.S_IMODE(os.stat(key).st_mode) == 0o600
    first = target.read_bytes()
    assert run(capsys, "redact", source, "--names", key, "-o", target)[0] == 0
    assert target.read_bytes() == first, "the same key file, the same stand-ins"
    code, out, said = run(capsys, "redact", "--check", target, "--names", key)
    assert code == 0
    assert all("(may stay: " in line for line in out.splitlines())
    assert "readable texts that may stay" in said
    assert run(capsys, "redact", "--check", source, "--names", key)[0] == 1
    pairs = StandIns.loads(key.read_bytes()).pairs
    name, word = next((name, word) for name, word in pairs.items() if name.startswith(b"kp-"))
    at = first.rindex(word)
    target.write_bytes(first[:at] + name + first[at + len(word) :])
    code, out, said = run(capsys, "redact", "--check", target, "--names", key)
    assert code == 1
    assert "1 packet of " in said or "packets of " in said
    assert out.startswith("frame ")


def test_all_configurations_whose_values_were_kept_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, said = run(capsys, "redact", CAPTURES / "k4_admin_sweep.pcap", "-o", tmp_path / "safe.pcap")
    (line,) = [line for line in said.splitlines() if line.startswith("values kept of: ")]
    names = line.removeprefix("values kept of: ").split(", ")
    assert len(names) > 200
    assert "unclean.leader.election.enable" in names
    assert not {"advertised.listeners", "log.dirs", "controller.quorum.voters"} & set(names)


def test_check_finds_what_is_no_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "safe.pcap"
    kdissect.open(CAPTURES / "base_tiny.pcap").redact(target)
    assert run(capsys, "redact", "--check", target)[0] == 0
    data = bytearray(target.read_bytes())
    at = data.index(b"x" * 20)
    data[at : at + 12] = b"alice-secret"
    target.write_bytes(data)
    code, out, said = run(capsys, "redact", "--check", target)
    assert (code, "alice-secret" in out) == (1, True)
    assert "names were not judged" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["redact", "a.pcap"], "either -o FILE or --check"),
        (["redact", "a.pcap", "--check", "-o", "b.pcap"], "either -o FILE or --check"),
        (["redact", str(CAPTURES / "base_tiny.pcap"), "--check", "--names", "/nowhere/key"], "no such key file"),
        (["redact", str(CAPTURES / "base_tiny.pcap"), "-o", "x.pcap", "--names", "/nowhere/key"], "/nowhere/key"),
        (["redact", str(CAPTURES / "base_tiny.pcap"), "-o", "x.pcap", "--names", "text.key"], "no key file"),
    ],
)
def test_bad_wishes(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.key").write_text("no key")
    Path("text.key").chmod(0o600)
    code, _, error = run(capsys, *arguments)
    assert (code, said in error, error.count("\n")) == (2, True, 1), error
