"""`show --wireshark`: what it prints runs, and finds the exchange."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys

import pytest

import kdissect
from tests.conftest import ROOT


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["raw_sessions.pcap", "zoo_kafkajs.pcap", "field_4in6.pcap"])
def test_its_commands_find_the_exchange(name: str) -> None:
    if shutil.which("tshark") is None:
        pytest.skip("tshark is not installed (apt install tshark)")
    path = ROOT / "captures" / name
    rows = kdissect.open(path).table("exchanges", where="status = 'ok'").to_pylist()
    row = rows[len(rows) // 2]
    done = subprocess.run(
        [sys.executable, "-m", "kdissect", "show", str(path), row["exchange_id"], "--wireshark"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    commands = [shlex.split(line) for line in done.stdout.splitlines() if not line.startswith("#")]
    assert [command[0] for command in commands] == ["tshark", "wireshark"]
    shown = subprocess.run(commands[0], capture_output=True, text=True, check=True).stdout
    assert f"(Correlation ID: {row['correlation_id']})" in shown or f"Correlation ID: {row['correlation_id']}" in shown
    frames = ["-T", "fields", "-e", "frame.number"]
    options = {"-r": "", "-d": "", "-Y": ""}
    for command, expected in ((commands[0], {row["request_frame"], row["response_frame"]}), (commands[1], None)):
        for option in options:
            options[option] = command[command.index(option) + 1]
        words = [word for pair in options.items() for word in pair]
        found = subprocess.run(["tshark", *words, *frames], capture_output=True, text=True, check=True).stdout
        numbers = {int(number) for number in found.split()}
        assert numbers
        assert numbers == expected if expected else row["request_frame"] in numbers
