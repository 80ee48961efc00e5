"""No credential of any capture comes out of any output: every table in every format, every message, show, summary.

What to look for comes from elsewhere than our decoder: the passwords in the scripts that recorded the captures, what
looks like a SASL message in the captures' bytes, salts, salted passwords and tokens as the brokers logged them.
"""

from __future__ import annotations

import base64
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import kdissect
from kdissect.cli.commands import main
from tests.oracle.material import CAPTURES, LOGGED, material

pytestmark = pytest.mark.oracle

CAPTURED = ("k4_admin_sweep", "sasl_logins", "sasl_old", "sweep_231", "sweep_391_kraft", "sweep_440_kraft")
MARKED = [pytest.param(one, marks=pytest.mark.exhaustive if one.endswith("_kraft") else ()) for one in CAPTURED]
"""With the largest where everything is run."""
PASSWORDS = (b"test-password", b"test-secret", b"alice-test", b"bob-test", b"live-test-salt")
SASL = re.compile(
    rb"n,,n=[\x21-\x7e]+|[cr]=[\x21-\x7e]+,[rs]=[\x21-\x7e]+|v=[A-Za-z0-9+/]{20,}=*|auth=Bearer [\x21-\x7e]+"
)
"""SCRAM messages (RFC 5802), and the token of OAUTHBEARER (RFC 7628)."""
LOGGED_SECRETS = re.compile(r'"(?:salt|saltedPassword|hmac|authBytes)":"([^"]{8,})"')
SHOWN = {17, 33, 36, 38, 39, 40, 41, 44, 51, 58}
"""APIs whose exchanges are shown one by one: those with credentials, and Envelope."""
EACH, EVERY = 2, 1000
"""Exchanges shown of each API and version."""
ENVELOPE = 58


@cache
def secrets(name: str) -> frozenset[bytes]:
    raw = (CAPTURES / f"{name}.pcap").read_bytes()
    found = {word for word in PASSWORDS if word in raw}
    found |= {one.group() for one in SASL.finditer(raw)}
    if name in LOGGED:
        lines = "\n".join(entry.line for entry in material(name).entries)
        found |= {base64.b64decode(one) for one in LOGGED_SECRETS.findall(lines)}
    return frozenset(found)


@cache
def forms(name: str) -> re.Pattern[bytes]:
    """Every secret as it is, in base64, in hexadecimal, in hexadecimal by bytes."""
    out = set()
    for secret in secrets(name):
        start = secret[:8]  # the beginning tells enough, and `show` cuts values
        out |= {secret, base64.b64encode(secret), secret.hex().encode(), start.hex(" ").encode()}
        out.add(json.dumps(secret.decode("latin-1"))[1:-1].encode())
    return re.compile(b"|".join(re.escape(one) for one in sorted(out)))


def check(name: str, data: bytes, where: str) -> None:
    found = forms(name).search(data)
    assert found is None, f"{where}: {found.group()!r} at {found.start()}"


def path(name: str) -> str:
    return str(CAPTURES / f"{name}.pcap")


def as_bytes(table: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return bytes(out.getvalue())


def output(*words: str) -> bytes:
    found = CliRunner().invoke(main, list(words))
    assert found.exit_code == 0, (words, found.output)
    return bytes(found.stdout_bytes)


@pytest.mark.parametrize("name", CAPTURED)
def test_there_is_something_to_find(name: str) -> None:
    raw = (CAPTURES / f"{name}.pcap").read_bytes()
    assert forms(name).search(raw)
    assert secrets(name)


@pytest.mark.parametrize("name", MARKED)
def test_tables(name: str, tmp_path: Path) -> None:
    tables = kdissect.open(path(name)).tables()
    for table, rows in tables.items():
        check(name, as_bytes(rows), table)
        for form in ("table", "jsonl", "csv", "arrow"):
            to = tmp_path / f"{table}.{form}"
            output(path(name), "--table", table, "--format", form, "-o", str(to))
            check(name, to.read_bytes(), f"{table} as {form}")


@pytest.mark.parametrize("name", MARKED)
def test_messages(name: str) -> None:
    capture = kdissect.open(path(name))
    apis = {row["api"] for row in material(name).exchanges if row["api"] and not row["api"].startswith("key ")}
    for api in sorted(apis):
        for side in ("request", "response"):
            check(name, as_bytes(capture.messages(api, side)), f"{api} {side}")


@pytest.mark.parametrize("name", CAPTURED)
def test_the_first_screen(name: str) -> None:
    check(name, output(path(name)), "first screen")
    check(name, repr(kdissect.open(path(name)).summary()).encode(), "summary")


@pytest.mark.parametrize("name", MARKED)
def test_show(name: str) -> None:
    seen: dict[Any, int] = {}
    for row in material(name).exchanges:
        which = row["api_key"], row["api_version"]
        most = EVERY if row["api_key"] == ENVELOPE else EACH
        if row["api_key"] not in SHOWN | {None} or seen.setdefault(which, 0) == most:
            continue
        seen[which] += 1
        check(name, output("show", path(name), row["exchange_id"]), f"show {row['exchange_id']}")
        for shown in kdissect.open(path(name)).show(row["exchange_id"]):
            check(name, repr(shown).encode(), f"{row['exchange_id']} in Python")
            check(name, shown.request_data + shown.response_data, f"{row['exchange_id']} as bytes")
    assert seen
