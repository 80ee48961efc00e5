"""`record_batches`, `records` and `producers` of recorded captures: against what their TOML files say was produced."""

from __future__ import annotations

import base64
import json
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pytest

import kdissect
from kdissect.problems import UsageError
from kdissect.tables.declaration import SCHEMAS
from kdissect.tables.recording import span
from kdissect.tables.where import parse

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
VALUE = b"abcdef " * 10
SAID = {f"{codec} value {i} ".encode() + VALUE for codec in CODECS for i in range(10) if i != 6}
"""Values of jc-data in k4_java_classic (its record 6 of each ten is null)."""


@pytest.fixture
def classic(captures: Path) -> Any:
    return kdissect.open(captures / "k4_java_classic.pcap")


@pytest.fixture
def transactions(captures: Path) -> Any:
    return kdissect.open(captures / "k4_transactions.pcap")


def run(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-m", "kdissect", *arguments], capture_output=True, timeout=120)


def test_columns_that_opening_a_wrapper_changes_say_so(captures: Path) -> None:
    path = captures / "era_0_8_2.pcap"
    closed, opened = (kdissect.open(path, verify=verify).table("record_batches") for verify in (False, True))
    changed = {name for name in closed.schema.names if not closed[name].equals(opened[name])}
    told = {one.name for one in SCHEMAS["record_batches"] if b"until it is opened" in one.metadata[b"doc"]}
    assert {"base_offset", "last_offset", "records"} <= changed <= told | {"uncompressed_bytes", "crc_ok"}


def test_every_value_said_is_there(classic: Any) -> None:
    table = classic.table("records", where="topic = 'jc-data' and offset < 50", reveal=True)
    rows = table.to_pylist()
    assert {row["value"] for row in rows} > SAID
    batches = {codec: i * 10 for i, codec in enumerate(CODECS)}
    fetched = classic.table("exchanges", ["exchange_id"], "api = 'Fetch'")["exchange_id"].to_pylist()
    consumed = [row for row in rows if row["exchange_id"] in set(fetched)]
    assert {row["value"] for row in consumed} == SAID | {None}
    for row in consumed:
        codec = CODECS[row["offset"] // 10]
        i = row["offset"] - batches[codec]
        assert (row["key"] is None) == (i in (4, 9)), row
        assert (row["value"] is None) == (i == 6), row
        assert row["value"] in (None, f"{codec} value {i} ".encode() + VALUE)
        assert len(row["headers"]) == (3 if i in (0, 3, 6, 9) else 0)
        if row["headers"]:
            assert [pair["key"] for pair in row["headers"]] == ["codec", "n", "nil"]
            assert row["headers"][0]["value"] == codec.encode()
            assert row["headers"][2]["value"] is None
        assert row["key_bytes"] == (None if row["key"] is None else len(row["key"]))
        assert row["value_bytes"] == (None if row["value"] is None else len(row["value"]))


def test_hidden_unless_revealed(classic: Any) -> None:
    hidden = classic.table("records")
    shown = classic.table("records", reveal=True)
    assert hidden.num_rows == shown.num_rows > 0
    for name in ("key", "value", "headers"):
        assert hidden[name].null_count == hidden.num_rows
        assert shown[name].null_count < shown.num_rows
    rest = [name for name in hidden.column_names if name not in ("key", "value", "headers")]
    assert hidden.select(rest).equals(shown.select(rest))
    assert pa.Table.from_batches(list(classic.batches("records")), hidden.schema).num_rows == hidden.num_rows


def test_batches_and_their_codecs(classic: Any) -> None:
    plain = classic.table("record_batches")
    assert plain["crc_ok"].null_count == plain["uncompressed_bytes"].null_count == plain.num_rows
    table = classic.table("record_batches", ["codec", "crc_ok", "uncompressed_bytes", "compressed_bytes", "records"])
    assert table["crc_ok"].to_pylist() == [True] * plain.num_rows
    assert set(table["codec"].to_pylist()) == set(CODECS)
    assert table["uncompressed_bytes"].null_count == 0
    for row in table.to_pylist():
        if row["codec"] == "none":
            assert row["uncompressed_bytes"] == row["compressed_bytes"] - 61  # the header of a magic-2 batch
    again = classic.table("record_batches", where="crc_ok and codec = 'zstd'")
    assert again.num_rows == Counter(table["codec"].to_pylist())["zstd"]
    counted = classic.table("fetch_partitions", ["batches"])["batches"].to_pylist()
    fetched = classic.tables({"exchanges": ["exchange_id"], "record_batches": None}, {"exchanges": "api = 'Fetch'"})
    fetches = set(fetched["exchanges"]["exchange_id"].to_pylist())
    ours = [row for row in fetched["record_batches"]["exchange_id"].to_pylist() if row in fetches]
    assert sum(filter(None, counted)) == len(ours) > 0


def test_what_is_asked_for_narrows_what_is_read(classic: Any) -> None:
    whole = classic.table("records", reveal=True).to_pylist()
    asked = "topic = 'jc-data' and partition = 1 and offset >= 17 and offset <= 33"
    found = classic.table("records", where=asked, reveal=True).to_pylist()
    expected = [r for r in whole if r["topic"] == "jc-data" and r["partition"] == 1 and 17 <= r["offset"] <= 33]
    assert found == expected
    assert found
    one = found[0]["exchange_id"]
    assert classic.table("records", where=f"exchange_id = '{one}'", reveal=True).to_pylist() == [
        row for row in whole if row["exchange_id"] == one
    ]
    for either in ("topic = 'jc-data' or partition = 7", "not (topic = 'jc-data')", "offset between 3 and 5"):
        part = classic.table("records", where=either).num_rows
        rows = classic.table("records").filter(parse(either, SCHEMAS["records"]).expression).num_rows
        assert part == rows > 0, either


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("offset = 5", (5, 6)),
        ("offset >= 5 and 9 > offset", (5, 10)),
        ("offset in (3, 9)", (3, 10)),
        ("offset = 5 or topic = 'a'", None),
        ("not (offset < 5)", None),
        ("topic = 'a'", None),
    ],
)
def test_the_offsets_that_a_filter_leaves(where: str, expected: tuple[int, int] | None) -> None:
    assert span(parse(where, SCHEMAS["records"]).limits) == expected


def test_transactions(transactions: Any) -> None:
    """Offsets of tx-out partition 0 are data or markers as the brokers' log said."""
    rows = transactions.table("records", where="topic = 'tx-out' and partition = 0").to_pylist()
    fetched = set(transactions.table("exchanges", ["exchange_id"], "api = 'Fetch'")["exchange_id"].to_pylist())
    kinds = {row["offset"]: row["control_type"] for row in rows if row["exchange_id"] in fetched}
    assert {offset for offset, kind in kinds.items() if kind == "commit"} == {3, 10}
    assert {8} <= {offset for offset, kind in kinds.items() if kind == "abort"}
    assert {0, 1, 2, 4, 5, 6, 7, 9, 11, 13, 15} == {offset for offset, kind in kinds.items() if kind is None}
    batches = transactions.table("record_batches", where="is_control").to_pylist()
    assert batches
    assert {row["records"] for row in batches} == {1}


def test_producers(transactions: Any) -> None:
    rows = transactions.table("producers").to_pylist()
    sent = transactions.tables(
        {"exchanges": ["exchange_id"], "record_batches": ["exchange_id", "producer_id", "base_sequence"]},
        {"exchanges": "api = 'Produce'", "record_batches": "producer_id >= 0"},
    )
    ours = set(sent["exchanges"]["exchange_id"].to_pylist())
    batches = [r for r in sent["record_batches"].to_pylist() if r["exchange_id"] in ours and r["base_sequence"] >= 0]
    assert sorted((r["exchange_id"], r["producer_id"], r["base_sequence"]) for r in rows) == sorted(
        (r["exchange_id"], r["producer_id"], r["base_sequence"]) for r in batches
    )
    assert {row["sequence"] for row in rows} == {"first", "reset", "ok"}
    assert next(iter(transactions.batches("producers"))).num_rows == len(rows)


def test_a_flipped_byte_is_a_problem(captures: Path, tmp_path: Path) -> None:
    path = tmp_path / "flipped.pcap"
    data = bytearray((captures / "k4_java_classic.pcap").read_bytes())
    data[data.index(b"none value 3 ")] ^= 1
    path.write_bytes(data)
    whole = kdissect.open(captures / "k4_java_classic.pcap", verify=True).tables(["record_batches", "problems"])
    assert whole["record_batches"]["crc_ok"].to_pylist() == [True] * whole["record_batches"].num_rows
    assert "records" not in whole["problems"]["kind"].to_pylist()
    found = kdissect.open(path, verify=True).tables(["record_batches", "problems", "connections"])
    wrong = [row for row in found["record_batches"].to_pylist() if row["crc_ok"] is False]
    assert len(wrong) == 1
    problems = [row for row in found["problems"].to_pylist() if row["kind"] == "records"]
    assert [row["exchange_id"] for row in problems] == [wrong[0]["exchange_id"]]
    assert problems[0]["where"].startswith(f"{wrong[0]['topic_id']}-{wrong[0]['partition']}, byte ")
    assert "checksum" in problems[0]["detail"]
    assert problems[0]["frame"] is not None
    per = Counter(row["connection_id"] for row in found["problems"].to_pylist())
    told = {row["connection_id"]: row["problems"] for row in found["connections"].to_pylist()}
    assert all(told[connection] == count for connection, count in per.items() if connection is not None)
    assert "records" not in kdissect.open(path).table("problems")["kind"].to_pylist(), "nobody asked"
    said = run(str(path), "--table", "problems", "--verify", "--where", "kind = 'records'", "--format", "jsonl")
    assert json.loads(said.stdout)["exchange_id"] == wrong[0]["exchange_id"]


def test_a_lying_length_is_a_problem_without_verify(captures: Path, tmp_path: Path) -> None:
    source = captures / "k4_java_classic.pcap"
    data = bytearray(source.read_bytes())
    value = data.index(b"none value 0 ")
    header = max(at for at in range(value - 200, value - 60) if not any(data[at : at + 8]) and data[at + 16] == 2)
    (length,) = struct.unpack_from(">i", data, header + 8)
    assert 61 < length < 2000
    struct.pack_into(">i", data, header + 8, length + 7)
    path = tmp_path / "lying.pcap"
    path.write_bytes(data)
    rows = [row for row in kdissect.open(path).table("problems").to_pylist() if row["kind"] == "records"]
    assert len(rows) == 1
    assert rows[0]["exchange_id"] is not None


def test_not_made_unless_asked_for(classic: Any, tmp_path: Path) -> None:
    tables = classic.tables()
    assert {"records", "producers"}.isdisjoint(tables)
    assert "record_batches" in tables
    said = run(str(classic.path("k4_java_classic.pcap", "k4_java_classic.pcap")), "-o", f"{tmp_path}/all/")
    assert said.returncode == 0
    written = {path.stem for path in (tmp_path / "all").iterdir()}
    assert "record_batches" in written
    assert "records" not in written


def test_the_command_line(captures: Path) -> None:
    path = str(captures / "k4_java_classic.pcap")
    asked = (path, "--table", "records", "--topic", "jc-data", "--partition", "0", "--offset", "20..29")
    for form in ("table", "jsonl", "csv"):
        hidden = run(*asked, "--format", form)
        assert hidden.returncode == 0
        assert b"snappy value" not in hidden.stdout
        assert base64.b64encode(b"snappy value")[:12] not in hidden.stdout
    text = run(*asked, "--reveal").stdout
    assert b"snappy value 3 abcdef" in text
    rows = [json.loads(line) for line in run(*asked, "--reveal", "--format", "jsonl").stdout.splitlines()]
    assert {row["offset"] for row in rows} == set(range(20, 30))
    assert {base64.b64decode(row["value"]) for row in rows if row["value"]} <= SAID
    assert any(row["headers"] and row["headers"][0]["key"] == "codec" for row in rows)
    comma = pa.csv.read_csv(pa.BufferReader(run(*asked, "--reveal", "--format", "csv").stdout)).to_pylist()
    assert [row["value"] or None for row in comma] == [row["value"] for row in rows]
    arrow = pa.ipc.open_stream(run(*asked, "--reveal", "--format", "arrow").stdout).read_all()
    assert arrow["value"].type == pa.binary()
    assert arrow["value"].to_pylist() == [row["value"] and base64.b64decode(row["value"]) for row in rows]
    sent = run(path, "--table", "producers", "--format", "jsonl").stdout.splitlines()
    assert len(sent) == 12
    none = run(path, "--table", "record_batches", "--format", "jsonl").stdout.splitlines()
    assert {json.loads(line)["crc_ok"] for line in none} == {None}
    good = run(path, "--table", "record_batches", "--verify", "--format", "jsonl").stdout.splitlines()
    assert {json.loads(line)["crc_ok"] for line in good} == {True}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--partition", "0"], "need --table"),
        (["--table", "exchanges", "--reveal"], "--reveal needs --table records"),
        (["--table", "exchanges", "--offset", "3..4"], "--offset does not go with --table exchanges"),
        (["--table", "exchanges", "--partition", "0"], "--partition does not go with --table exchanges"),
        (["--table", "records", "--offset", "x"], "no range of offsets"),
        (["--table", "records", "--offset", "9..3"], "ends before it begins"),
        (["--table", "records", "--offset", ".."], "no range of offsets"),
    ],
)
def test_bad_arguments(captures: Path, arguments: list[str], said: str) -> None:
    done = run(str(captures / "base_tiny.pcap"), *arguments)
    assert done.returncode == 2
    assert said in done.stderr.decode()
    assert len(done.stderr.splitlines()) == 1


def test_show_takes_batches_apart(classic: Any, captures: Path) -> None:
    row = classic.table(
        "records", ["exchange_id"], "topic = 'jc-data' and offset = 3 and value_bytes > 70"
    ).to_pylist()[0]
    (hidden,) = classic.show(row["exchange_id"])
    (shown,) = classic.show(row["exchange_id"], reveal=True)
    paths = hidden.response["path"].to_pylist()
    assert any(path.endswith(".records.batches[0].records[3].value_length") for path in paths)
    value = b"value 3 " + VALUE
    told = " ".join(filter(None, hidden.response["value"].to_pylist()))
    assert "abcdef" not in told
    assert value not in hidden.response_data
    assert any(value.decode() in text for text in shown.response["value"].to_pylist() if text)
    place = 0
    for offset, length in zip(shown.response["offset"].to_pylist(), shown.response["length"].to_pylist(), strict=True):
        if offset is not None:
            assert offset == place
            place += length
    assert place == len(shown.response_data)
    said = run("show", str(captures / "k4_java_classic.pcap"), row["exchange_id"])
    assert said.returncode == 0
    assert b"abcdef" not in said.stdout
    assert b"abcdef" in run("show", str(captures / "k4_java_classic.pcap"), row["exchange_id"], "--reveal").stdout


def test_unknown_columns_are_refused(classic: Any) -> None:
    with pytest.raises(UsageError):
        classic.table("records", ["valu"])


def test_findings_do_not_depend_on_what_else_is_asked(classic: Any) -> None:
    alone = classic.table("findings")
    assert classic.tables({"findings": None, "record_batches": ["exchange_id"]})["findings"].equals(alone)
    assert classic.tables()["findings"].equals(alone)
