"""`redact`: the same exchanges come out, tshark reads it as before, and nothing secret is left in its bytes."""

from __future__ import annotations

import gzip
import io
import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kdissect
from kdissect.engine.extracts import checking
from kdissect.problems import UsageError
from tests.conftest import ROOT

CAPTURES = ROOT / "captures"
REDACTED = {"connection_id", "exchange_id", "client_ip", "community_id"}
"""Columns that tell of the client's address; ids are made of it."""
NAMES = [
    "base.pcap", "k4_admin_sweep.pcap", "k4_share_group.pcap", "k4_transactions.pcap", "era_0_8_2.pcap",
    "era_3_9_1_kraft.pcap", "sasl_logins.pcap", "sasl_old.pcap", "raw_acks0.pcap", "raw_cuts.pcap", "raw_errors.pcap",
    "raw_reuse.pcap", "zoo_librdkafka.pcap", "field_vxlan.pcap", "field_erspan.pcap", "field_4in6.pcap",
    "field_any_sll2.pcap", "field_ipv6_options.pcap", "field_null.pcap", "field_pppoe.pcap", "field_duplicates.pcap",
    "field_reordered.pcap", "field_loss5.pcap", "field_midstream.pcap", "field_snap96.pcap", "field_snap200.pcap",
    "field_be_us.pcap", "field_two_sections.pcapng", "field_zst.pcap.zst", "sweep_231.pcap",
]  # fmt: skip


HEADER = {"api", "api_key", "api_version", "correlation_id", "client_id"}
"""What the header of a request says; a request that nobody answered and that no release has may be anything."""
READ = {
    "api", "api_key", "api_version", "api_inferred", "decoded", "error_code", "error", "error_count", "throttle_ms",
    "broker",
}  # fmt: skip
"""Of a response whose request was not captured: its body is blanked, and nothing can be inferred or read from that,
nor who its broker is."""


@pytest.fixture(scope="module")
def redacted(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            # the same name, for names of files are columns
            made[name] = tmp_path_factory.mktemp("safe") / name
            kdissect.open(CAPTURES / name).redact(made[name])
        return made[name]

    return make


def plain(path: Path) -> bytes:
    """The bytes of a capture, decompressed."""
    data = path.read_bytes()
    if path.suffix == ".zst":
        import zstandard

        try:
            return zstandard.ZstdDecompressor().decompressobj().decompress(data)
        except zstandard.ZstdError:
            return data  # redacted: never compressed
    return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data


def in_order(path: Path) -> list[dict[str, Any]]:
    tables = kdissect.open(path).tables(["exchanges", "problems"])
    rows: list[dict[str, Any]] = tables["exchanges"].to_pylist()
    rows.sort(
        key=lambda r: tuple(str(r[k]) for k in ("request_frame", "response_frame", "client_port", "correlation_id"))
    )
    # A body with bytes left over is blanked as a whole, and fits no layout then.
    left_over = {
        p["exchange_id"] for p in tables["problems"].to_pylist() if p["kind"] in ("trailing_bytes", "body_misfit")
    }
    return [
        {
            k: v
            for k, v in row.items()
            if k not in REDACTED | not_kept(row) | ({"status", "decoded"} if row["exchange_id"] in left_over else set())
        }
        for row in rows
    ]


def not_kept(row: dict[str, Any]) -> set[str]:
    """Columns of a row that a redacted copy cannot have."""
    if row["status"] == "orphan":
        return READ
    api = kdissect.schema.index.load().apis.get(row["api_key"])
    known = api is not None and row["api_version"] <= api.request.versions.last
    return set() if known or row["response_frame"] is not None else HEADER | {"decoded"}


def rows_of_pairs(path: Path, table: str, columns: list[str]) -> list[str]:
    """Rows but for those of responses whose requests were not captured."""
    known = kdissect.tables.declaration.SCHEMAS[table].names
    rows = kdissect.open(path).table(table, columns=[*columns, *({"exchange_id"} & set(known))]).to_pylist()
    return sorted(repr(row) for row in rows if ":r" not in row.pop("exchange_id", ""))


def problem_kinds(path: Path) -> list[str]:
    """Kinds of problems; a response that is blanked fits no API, and so not several."""
    kinds = kdissect.open(path).table("problems").column("kind").to_pylist()
    return sorted(kind for kind in kinds if kind != "ambiguous")


@pytest.mark.parametrize("name", NAMES)
def test_the_same_exchanges(name: str, redacted: Any) -> None:
    assert in_order(redacted(name)) == in_order(CAPTURES / name)


def test_responses_alone_prove_nothing_once_they_are_blanked(redacted: Any) -> None:
    """Their bodies alone showed that this is Kafka. The connections and their sizes stay."""
    copy = kdissect.open(redacted("field_to_client.pcap"))
    assert copy.table("exchanges").num_rows == 0
    columns = ["client_port", "broker_ip", "packets", "bytes"]
    before = kdissect.open(CAPTURES / "field_to_client.pcap").table("connections", columns)
    assert copy.table("connections", columns).to_pylist() == before.to_pylist()


@pytest.mark.parametrize("table", ["fetches", "fetch_partitions", "list_offsets", "producer_ids", "api_versions"])
def test_other_tables(table: str, redacted: Any) -> None:
    columns = [c for c in kdissect.tables.declaration.SCHEMAS[table].names if c not in REDACTED | {"session_key"}]
    for name in ("base.pcap", "k4_transactions.pcap", "era_3_9_1_kraft.pcap"):
        assert rows_of_pairs(redacted(name), table, columns) == rows_of_pairs(CAPTURES / name, table, columns)


SECRETS = {
    "sasl_logins.pcap": [
        rb"alice-[a-z]+", rb"n,,n=[a-z]+,r=[A-Za-z0-9]+", rb"r=[^,]{8,},s=[^,]+", rb"p=[A-Za-z0-9+/=]{20,}",
    ],
    "sasl_old.pcap": [rb"\0alice\0alice-test"],
    "k4_admin_sweep.pcap": [rb"\x0b/127\.0\.0\.1"],  # client_host in descriptions of groups
}  # fmt: skip
"""What stands openly in these captures and must not stand in their copies."""


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_secrets_are_gone(name: str, redacted: Any) -> None:
    before, after = plain(CAPTURES / name), plain(redacted(name))
    for pattern in SECRETS[name]:
        found = set(re.findall(pattern, before))
        assert found, pattern
        left = [text for text in found if text in after]
        assert not left, left[:5]


@pytest.mark.parametrize("name", ["k4_java_classic.pcap", "era_2_8_2.pcap"])
def test_record_values_are_gone(name: str, redacted: Any) -> None:
    """Taken from the original by kafka-python's own reader of batches; where they were, it reads batches again whose
    checksums are right, with the same sizes."""
    before, after = plain(CAPTURES / name), plain(redacted(name))
    assert len(before) == len(after)
    said: set[bytes] = set()
    batches = 0
    for match in re.finditer(rb"\x02(?=.{4}\x00[\x00-\x1f])", before, re.DOTALL):
        start = match.start() - 16
        size = int.from_bytes(before[start + 8 : start + 12], "big")
        if start < 0 or not 49 < size < 1_000:
            continue
        was = _batch(before[start : start + 12 + size])
        if was is None:
            continue
        now = _batch(after[start : start + 12 + size])
        assert now is not None, start
        batches += 1
        if before[start + 22] & 7:  # compressed: its content is zeros
            assert not any(after[start + 61 : start + 12 + size])
            continue
        for old, new in zip(was, now, strict=True):
            assert (old.offset, old.timestamp) == (new.offset, new.timestamp)
            if before[start + 22] & 0x20:  # a transaction's marker
                continue
            for x, y in ((old.key, new.key), (old.value, new.value)):
                assert (y is None) if x is None else bytes(y) == b"x" * len(x)
            said |= {bytes(x) for x in (old.key, old.value) if x and re.search(rb"[a-z]{5}", x)}
    assert batches > 10
    assert len(said) > 10
    assert not [text for text in said if text in after]


def _batch(data: bytes) -> Any:
    """kafka-python's view of a batch, None where it is none or its checksum is wrong."""
    from kafka.record import MemoryRecords

    records = MemoryRecords(data)
    batch = records.next_batch() if records.has_next() else None
    return batch if batch is not None and batch.validate_crc() else None


def test_addresses_of_clients_are_gone(redacted: Any) -> None:
    source = CAPTURES / "base.pcap"
    client = kdissect.open(source).table("connections").column("client_ip").unique().to_pylist()
    broker = kdissect.open(source).table("connections").column("broker_ip").unique().to_pylist()
    data = plain(redacted("base.pcap"))
    for address in client:
        assert bytes(map(int, address.split("."))) not in data
    for address in broker:
        assert bytes(map(int, address.split("."))) in data
    stand_ins = kdissect.open(redacted("base.pcap")).table("connections").column("client_ip").unique().to_pylist()
    assert len(stand_ins) == len(client)
    assert all(address.startswith("198.18.") for address in stand_ins)


def test_other_protocols_are_blank(redacted: Any) -> None:
    """Of TLS nothing is left but its packets' sizes."""
    safe = redacted("tls13.pcap")
    data, at = plain(safe), 24
    payloads = 0
    while at < len(data):
        size = struct.unpack_from("<I", data, at + 8)[0]
        packet = data[at + 16 : at + 16 + size]
        at += 16 + size
        if packet[12:14] == b"\x88\xb5":
            assert not any(packet[:12] + packet[14:])
            continue
        ip = packet[14:]
        assert ip[9] == 6
        tcp = ip[(ip[0] & 15) * 4 :]
        payload = tcp[(tcp[12] >> 4) * 4 :]
        payloads += len(payload)
        assert not any(payload)
    assert payloads > 10_000


@pytest.mark.parametrize("name", ["field_duplicates.pcap", "field_reordered.pcap", "field_loss5.pcap"])
def test_what_was_sent_twice_stays_the_same(name: str, redacted: Any) -> None:
    """Copies of the same stretch of a stream have the same bytes, in the capture and in the redacted one."""

    def copies(data: bytes) -> tuple[int, int]:
        seen: dict[tuple[bytes, int, int], bytes] = {}
        repeated = different = 0
        at = 24
        while at < len(data):
            size = struct.unpack_from("<I", data, at + 8)[0]
            ip = data[at + 30 : at + 16 + size]
            at += 16 + size
            tcp = ip[(ip[0] & 15) * 4 : int.from_bytes(ip[2:4], "big")]
            payload = tcp[(tcp[12] >> 4) * 4 :]
            key = ip[12:20] + tcp[:4], int.from_bytes(tcp[4:8], "big"), len(payload)
            if payload and key in seen:
                repeated += 1
                different += seen[key] != payload
            seen[key] = payload
        return repeated, different

    before, after = copies(plain(CAPTURES / name)), copies(plain(redacted(name)))
    assert before == after
    assert after[1] == 0
    if name == "field_duplicates.pcap":
        assert after[0] > 50
    assert problem_kinds(redacted(name)) == problem_kinds(CAPTURES / name)


@pytest.mark.parametrize("seed", range(12))
def test_any_damage_is_survived(seed: int, tmp_path: Path) -> None:
    """Bytes flipped all over a capture: nothing is raised, and no password comes through."""
    random = np.random.default_rng(seed)
    names = ["sasl_logins.pcap", "field_vxlan.pcap", "field_ip_fragments.pcap", "field_snap200.pcap"]
    data = bytearray((CAPTURES / names[seed % len(names)]).read_bytes())
    for at in random.integers(24, len(data), 100):
        data[at] = random.integers(0, 256)
    source = tmp_path / "damaged.pcap"
    source.write_bytes(data)
    buffer = io.BytesIO()
    kdissect.open(source).redact(buffer)
    assert b"alice-test" not in buffer.getvalue()
    for row in kdissect.open(source).table("exchanges").to_pylist()[:2]:
        kdissect.open(source).cut(io.BytesIO(), exchange=row["exchange_id"])


def test_tls_keys_are_dropped(tmp_path: Path) -> None:
    secret = b"CLIENT_RANDOM 0011 2233\n"
    pcap = (CAPTURES / "tls13.pcap").read_bytes()
    source = tmp_path / "in.pcapng"

    def block(kind: int, body: bytes) -> bytes:
        body += bytes(-len(body) % 4)
        return struct.pack("<II", kind, len(body) + 12) + body + struct.pack("<I", len(body) + 12)

    data = block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
    data += block(10, struct.pack("<II", 0x544C534B, len(secret)) + secret) + block(1, struct.pack("<HHI", 1, 0, 0))
    seconds, _, size, original = struct.unpack_from("<IIII", pcap, 24)
    data += block(6, struct.pack("<IIIII", 0, 0, seconds, size, original) + pcap[40 : 40 + size])
    source.write_bytes(data)
    buffer = io.BytesIO()
    kdissect.open(source).redact(buffer)
    assert secret not in buffer.getvalue()


def test_bad_wishes(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="one capture"):
        kdissect.open([CAPTURES / "base.pcap", CAPTURES / "base_tiny.pcap"]).redact(tmp_path / "x")
    with pytest.raises(UsageError, match="only once"):
        kdissect.open(io.BytesIO((CAPTURES / "base_tiny.pcap").read_bytes())).redact(tmp_path / "x")
    assert not list(tmp_path.iterdir())


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["base.pcap", "field_vxlan.pcap", "field_4in6.pcap", "field_ipv6_options.pcap"])
def test_tshark_finds_every_checksum_right(name: str, redacted: Any) -> None:
    """IP and TCP checksums, and the same Kafka messages in the same frames."""
    if shutil.which("tshark") is None:
        pytest.skip("tshark is not installed (apt install tshark)")
    port = kdissect.open(CAPTURES / name).table("connections").column("broker_port")[0].as_py()

    def read(path: Path, *fields: str) -> list[str]:
        options = [word for field in fields for word in ("-e", field)]
        done = subprocess.run(
            ["tshark", "-r", path, "-o", "ip.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE",
             "-d", f"tcp.port=={port},kafka", "-T", "fields", *options],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert [line for line in done.stderr.splitlines() if "Running as user" not in line] == []
        return done.stdout.splitlines()

    sums = read(redacted(name), "ip.checksum.status", "tcp.checksum.status")
    assert sums
    assert not [line for line in sums if "0" in line]
    told = "frame.number", "frame.time_epoch", "kafka.correlation_id", "kafka.request_key", "kafka.response_key"
    malformed = "_ws.malformed"
    assert read(redacted(name), *told) == read(CAPTURES / name, *told)
    assert read(redacted(name), malformed) == read(CAPTURES / name, malformed)


def test_names_across_the_pieces_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest name that stands at a place is found, wherever pieces of the file end."""
    data = b"...orders...orders-eu...payments..."
    wanted = re.compile(b"orders-eu|payments|orders")
    whole = {match[0]: match.start() for match in wanted.finditer(data)}
    assert len(whole) == 3
    for piece in range(1, len(data) + 1):
        monkeypatch.setattr(checking, "PIECE", piece)
        assert checking._find_names(io.BytesIO(data), wanted, len(b"orders-eu")) == whole


def test_packets_that_differ() -> None:
    before = np.frombuffer(b"hhabchhdefhhhhgh", np.uint8)
    after = np.frombuffer(b"XXabcXXdeXXXXXXh", np.uint8)
    at, size = np.array([2, 7, 12, 14]), np.array([3, 3, 0, 2])
    assert checking._differ(before, after, at, size).tolist() == [False, True, False, True]
