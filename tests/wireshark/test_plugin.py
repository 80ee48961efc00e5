"""tshark with the plugin beside kdissect's own tables: every message, every field, every pair."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import kdissect
from kdissect.schema import index
from kdissect.schema.names import snake_case
from tests.oracle import pcap
from tests.oracle.material import CAPTURES, ENCRYPTED, LOGGED
from tests.oracle.test_secrets import CAPTURED as WITH_SECRETS
from tests.oracle.test_secrets import secrets
from tests.wireshark.layout_values import as_shown, names, shown, values
from tests.wireshark.plugged import Message, command, lua_errors, messages, run

pytestmark = pytest.mark.oracle

SAMPLE = ("raw_cuts", "zoo_kafkajs", "sasl_old", "raw_ids", "raw_errors", "raw_reuse", "tls13")
"""Small captures of everything that is told apart; all others take minutes."""
DIRECTIONS = ("request", "response")
API_VERSIONS, UNSUPPORTED_VERSION = 18, 35
MICROSECOND = 1e-6


def captures() -> list[Any]:
    """The sample, then every other capture that has a request log."""
    others = [pytest.param(name, marks=pytest.mark.exhaustive) for name in LOGGED if name not in SAMPLE]
    return [*SAMPLE, *others]


@cache
def read(lua: Path, name: str) -> list[Message]:
    options = ["-o", f"tls.keylog_file:{CAPTURES / name}.keys.log"] if name in ENCRYPTED else []
    return messages(lua, CAPTURES / f"{name}.pcap", *options)


@cache
def opened(name: str) -> Any:
    keys = CAPTURES / f"{name}.keys.log"
    return kdissect.open(CAPTURES / f"{name}.pcap", **({"keylog": keys} if keys.exists() else {}))


@cache
def exchanges(name: str) -> list[dict[str, Any]]:
    return list(opened(name).table("exchanges").to_pylist())


@cache
def bodies(name: str, api: str, direction: str) -> dict[str, dict[str, Any]]:
    return {row["exchange_id"]: row for row in opened(name).messages(api, direction).to_pylist()}


def matched(lua: Path, name: str) -> Iterator[tuple[Message, dict[str, Any] | None]]:
    """Each message that tshark shows, with its exchange: the first left of that frame, side and correlation id."""
    by_place: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in exchanges(name):
        for response, direction in enumerate(DIRECTIONS):
            key = row[f"{direction}_frame"], bool(response), row["correlation_id"]
            by_place.setdefault(key, []).append(row)
    for message in read(lua, name):
        left = by_place.get((message.frame, message.response, message.number("correlation_id")))
        yield message, left.pop(0) if left else None


@pytest.mark.parametrize("name", captures())
def test_every_field_of_every_message(name: str, lua: Path) -> None:
    wrong: Counter[str] = Counter()
    first: dict[str, str] = {}
    compared = 0
    problems = kdissect.open(CAPTURES / f"{name}.pcap").table("problems").to_pylist()
    left_over = {problem["exchange_id"] for problem in problems if problem["kind"] == "trailing_bytes"}
    for message, row in matched(lua, name):
        assert row is not None, f"tshark alone: frame {message.frame} {message.fields}"
        if not message.response and row["exchange_id"] in left_over:
            assert "kdissect.malformed" in message.fields  # Wireshark says so of any bytes behind the last field
            continue
        api = index.load().apis.get(message.number("api") or 0)
        side = int(message.response)
        version = message.number("version") or 0
        theirs = None if api is None else bodies(name, api.name, DIRECTIONS[side]).get(row["exchange_id"])
        if api is None or theirs is None:
            assert {"kdissect.malformed", "kdissect.unknown"} & message.fields.keys(), row
            continue
        if (api.key, side) == (API_VERSIONS, 1) and theirs["error_code"] == UNSUPPORTED_VERSION:
            version = 0
        expected = values(api, side, version, theirs)
        mine = f"kdissect.{snake_case(api.name)}."
        found = {k: v for k, v in message.fields.items() if k.startswith(mine) and names().shown[k].kind != "group"}
        compared += 1
        assert "kdissect.malformed" not in message.fields
        assert message.response or message.fields.get("kdissect.client_id", [""]) == [
            shown("string", row["client_id"] or "")
        ]
        for field in expected.keys() | found.keys():
            kind = names().shown[field].kind
            ours = [shown(kind, one) for one in expected.get(field, [])]
            seen = [as_shown(kind, one) for one in found.get(field, [])]
            if ours != seen:
                wrong[field] += 1
                first.setdefault(field, f"frame {message.frame} v{version}: ours {ours[:4]}, tshark {seen[:4]}")
    assert compared
    assert not wrong, "\n".join(f"{n} x {field}; {first[field]}" for field, n in wrong.most_common(10))


@pytest.mark.parametrize("name", captures())
def test_every_message_and_pair(name: str, lua: Path) -> None:
    """All that kdissect finds is shown, but for messages that the end of the capture or of a connection cuts, and
    headers of APIs that cannot be (a negative key); pairs are the same, in the same frames, with the same latency."""
    pairs: dict[tuple[Any, ...], float] = {
        (m.number("request_in"), m.frame, m.number("correlation_id")): float(m.fields["kdissect.latency"][0])
        for m in read(lua, name)
        if m.response
    }
    rows = exchanges(name)
    expected = {
        (row["request_frame"], row["response_frame"], row["correlation_id"]): row["latency_ms"] / 1000
        for row in rows
        if row["request_last_at"] is not None and row["response_last_at"] is not None and row["status"] != "orphan"
    }
    assert pairs.keys() == expected.keys()
    late = {pair: (took, expected[pair]) for pair, took in pairs.items() if abs(took - expected[pair]) > MICROSECOND}
    assert not late
    back = {
        (m.frame, m.number("response_in"), m.number("correlation_id"))
        for m in read(lua, name)
        if "kdissect.response_in" in m.fields
    }
    assert back == expected.keys()
    requests = Counter((m.frame, m.number("correlation_id")) for m in read(lua, name) if not m.response)
    rows = [row for row in rows if row["request_last_at"] is not None and row["status"] != "orphan"]
    sent = Counter((row["request_frame"], row["correlation_id"]) for row in rows)
    surely = Counter(
        (row["request_frame"], row["correlation_id"]) for row in rows if row["api"] is not None and not _unknown(row)
    )
    assert surely <= requests <= sent


def _unknown(row: dict[str, Any]) -> bool:
    """A connection's first request that fits no layout: nothing says yet that this is Kafka."""
    return row["exchange_id"].endswith(":0") and not row["decoded"]


@pytest.mark.parametrize(
    "name", [*WITH_SECRETS[1:3], *(pytest.param(n, marks=pytest.mark.exhaustive) for n in WITH_SECRETS)]
)
@pytest.mark.parametrize("form", [["-V"], ["-T", "json"], ["-T", "ek"]], ids=lambda form: form[-1])
def test_no_credential_is_shown(name: str, form: list[str], lua: Path) -> None:
    """Of the plugin's part; other layers (TCP's payload) and the byte pane show the packet as it was."""
    done = run(
        command(lua, CAPTURES / f"{name}.pcap", *form, *(["-O", "kdissect"] if form == ["-V"] else ["-J", "kdissect"]))
    )
    assert done.returncode == 0
    assert not lua_errors(done)
    output = done.stdout.replace(b":", b"").lower()
    assert b"kdissect" in output or b"kafka (kdissect)" in output
    assert secrets(name)
    for secret in secrets(name):
        assert secret.lower().replace(b":", b"") not in output
        assert secret[:8].hex().encode() not in output


CONFIGURATIONS = {
    "cleanup.policy": True, "ssl.keystore.location": True, "listener.name.inside.ssl.protocol": True,
    "x.listener.name.inside.max.message.bytes": False, "listener.name.password.ssl.protocol": False,
    "sasl.jaas.config": False, "ssl.keystore.key": False, "listener.name.inside.ssl.key.password": False,
    "my.plugin.setting": False, "": False, "Cleanup.Policy": False, "a\udcff": False,
}  # fmt: skip
"""Whether the value of a configuration of this name may be shown."""


def test_values_of_configurations_as_in_messages(lua: Path, tmp_path: Path) -> None:
    """AlterConfigs v0 (KIP-133): a value is shown where `messages` has it, and else only how long it is."""

    def text(value: str) -> bytes:
        data = value.encode("utf-8", "surrogateescape")
        return struct.pack(">h", len(data)) + data

    pieces = [text(name) + text(f"value-{i}") for i, name in enumerate(CONFIGURATIONS)]
    resource = struct.pack(">b", 2) + text("t") + struct.pack(">i", len(pieces)) + b"".join(pieces)
    body = struct.pack(">i", 1) + resource + b"\0"
    talk = pcap.Talk()
    talk.handshake()
    talk.put(1, 0, 0, pcap.framed(struct.pack(">hhi", 33, 0, 1) + text("c") + body))
    path = tmp_path / f"{tmp_path.name}-configurations.pcap"
    path.write_bytes(pcap.pcap(talk.packets))
    expected = [f"value-{i}" for i, is_open in enumerate(CONFIGURATIONS.values()) if is_open]
    (row,) = kdissect.open(path).messages("AlterConfigs", "request").to_pylist()
    assert [one["value"] for one in row["resources"][0]["configs"] if one["value"] is not None] == expected
    (message,) = messages(lua, path)
    assert message.fields["kdissect.alter_configs.resources.configs.value"] == expected
    assert message.fields["kdissect.hidden"] == [
        str(len(f"value-{i}")) for i, is_open in enumerate(CONFIGURATIONS.values()) if not is_open
    ]
