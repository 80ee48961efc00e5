"""How sure findings are of their causes, and the captures that would settle them."""

from __future__ import annotations

import shlex
import subprocess
from typing import Any

import pytest

import kdissect
from kdissect.analysis.findings.catalogue import KINDS
from kdissect.analysis.findings.evidence import Finding
from kdissect.analysis.findings.next_captures import state_certainty
from kdissect.tables.declaration import SCHEMAS
from tests.analysis.wire import made
from tests.conftest import CAPTURES

HOSTILE = "x'; touch /tmp/owned #\n"


def connections(*more: dict[str, Any]) -> Any:
    row = {"connection_id": f"{1:016x}", "is_kafka": True, "client_id": "c", "client_ip": "10.0.0.1", "broker": "2",
           "broker_ip": "10.0.0.9", "broker_port": 9092}  # fmt: skip
    return made("connections", [row | one for one in (more or ({},))])


def found(kind: str, severity: str = "medium", **about: Any) -> Finding:
    about = {"cause": KINDS[kind].cause, "first_at": 0, "last_at": 0, "broker": "2", "client_id": "c"} | about
    return Finding(kind, severity, "text", "exchanges", "true", 1, None, **about)


def test_a_proved_cause_is_sure_and_needs_no_capture() -> None:
    one = state_certainty(found("throttled_client"), connections())
    assert (one.certainty, one.next_capture) == ("sure", None)


def test_a_cause_that_the_rule_measured_is_sure() -> None:
    one = state_certainty(found("slow_requests", cause="network"), connections())
    assert (one.certainty, one.next_capture) == ("sure", None)


def test_a_likely_cause_names_the_capture_that_would_settle_it() -> None:
    one = state_certainty(found("consumer_silent", last_at=100_000_000), connections())
    assert one.certainty == "likely"
    assert one.next_capture == (
        "timeout 300 tcpdump -i any -s 0 -w next.pcap 'tcp port 9092 and host 10.0.0.9'"
        "  # on 10.0.0.1, the host of the client"
    )


def test_an_unknown_cause_has_no_certainty() -> None:
    one = state_certainty(found("batches_sent_again"), connections())
    assert one.certainty is None
    assert one.next_capture is not None


def test_nothing_is_captured_where_nothing_is_wrong() -> None:
    assert state_certainty(found("consumer_silent", "info"), connections()).next_capture is None


def test_without_a_connection_there_is_no_command() -> None:
    assert state_certainty(found("consumer_silent", client_id="other"), connections()).next_capture is None


def test_names_of_a_capture_have_no_place_in_a_command() -> None:
    one = state_certainty(found("consumer_silent", client_id=HOSTILE), connections({"client_id": HOSTILE}))
    assert one.next_capture is not None
    assert "touch" not in one.next_capture


def test_many_hosts_and_ports_are_left_out_of_the_filter() -> None:
    rows = [{"client_ip": f"10.0.1.{n}", "broker_port": 9000 + n} for n in range(9)]
    one = state_certainty(found("slow_topic"), connections(*rows))
    assert one.next_capture is not None
    assert "'tcp'" in one.next_capture


@pytest.mark.parametrize(
    "name", ["stories/net_blackout_client", "stories/slow_broker", "lab/consumer_stopped_aiokafka"]
)
def test_commands_of_recordings_are_filters_that_tcpdump_compiles(name: str) -> None:
    rows = kdissect.open(next(CAPTURES.glob(f"{name}.pcap*"))).table("findings").to_pylist()
    commands = [row["next_capture"] for row in rows if row["next_capture"]]
    assert commands
    assert {row["certainty"] for row in rows} <= {"sure", "likely", None}
    for command in commands:
        words = shlex.split(command, comments=True)
        assert words[:2] == ["timeout", str(int(words[1]))]
        assert words[2:-1] == ["tcpdump", "-i", "any", "-s", "0", "-w", "next.pcap"]
    done = subprocess.run(["tcpdump", "-y", "EN10MB", "-d", words[-1]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_columns_are_declared() -> None:
    assert {"certainty", "next_capture"} <= set(SCHEMAS["findings"].names)
