"""Where traffic comes from, and what is said where it cannot come from there."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from kdissect.capture.window import Window
from kdissect.cli.main import main
from kdissect.live.capture_clock import CaptureClock
from kdissect.live.source import Interface, open_source
from kdissect.problems import CaptureNotFound, CaptureUnreadable, UsageError

PCAP_HEADER = bytes.fromhex("d4c3b2a1020004000000000000000000ffff000001000000")


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is looked at before all others for programs."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def test_no_permission(programs: Path) -> None:
    program(
        programs, "tcpdump", "echo 'tcpdump: eth7: You do not have permission to capture on that device' >&2; exit 1"
    )
    with pytest.raises(CaptureUnreadable) as caught:
        Interface("eth7")
    assert str(caught.value) == (
        "tcpdump may not capture on eth7. As root it may: sudo tcpdump -i eth7 -U -w - tcp | kdissect top -. To allow "
        "a copy of it to the members of one group, who then read all traffic of this host: sudo groupadd -f pcap && "
        f"sudo install -o root -g pcap -m 750 {programs}/tcpdump /usr/local/bin/tcpdump && "
        "sudo setcap cap_net_raw+ep /usr/local/bin/tcpdump && sudo usermod -aG pcap $USER"
    )


def test_no_permission_for_dumpcap(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(programs, "dumpcap", "echo 'You do not have permission to capture on device eth7' >&2; exit 1")
    monkeypatch.setattr("kdissect.live.source.PROGRAMS", ("dumpcap",))
    with pytest.raises(CaptureUnreadable, match=r"sudo dumpcap -i eth7 -q -w - -f tcp \| kdissect top -"):
        Interface("eth7")


def test_no_such_interface(programs: Path) -> None:
    program(programs, "tcpdump", "echo 'tcpdump: nix0: No such device exists' >&2; exit 1")
    with pytest.raises(CaptureUnreadable, match="tcpdump cannot capture on nix0: tcpdump: nix0: No such device"):
        Interface("nix0")


def test_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CaptureUnreadable, match="Neither tcpdump nor dumpcap"):
        Interface("eth0")


def test_the_kernels_drops(programs: Path) -> None:
    """tcpdump tells them when it is asked."""
    (programs / "header").write_bytes(PCAP_HEADER)
    told = "echo '9 packets captured' >&2; echo '7 packets dropped by kernel' >&2"
    program(programs, "tcpdump", f"trap \"{told}\" USR1\ncat {programs}/header\necho \"$@\" > {programs}/asked\n"
            "while true; do sleep 0.05; done")  # fmt: skip
    source = Interface("eth0", [9092, 9093])
    deadline = time.monotonic() + 30
    while source.dropped() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert source.dropped() == 7
    assert (programs / "asked").read_text().split()[:2] == ["-i", "eth0"]
    assert "--immediate-mode" not in (programs / "asked").read_text(), "it leaves room for 512 packets"
    assert (programs / "asked").read_text().strip().endswith("tcp and (port 9092 or port 9093)")
    assert not source.waits_for_us
    source.close()


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (([], None, (), None), "say what to watch"),
        ((["a", "b"], None, (), None), "say what to watch"),
        ((["a"], "eth0", (), None), "-i captures on an interface"),
        ((["a"], None, (9092,), None), "--port goes with -i"),
        ((["-"], None, (), 2.0), "--speed replays a file"),
    ],
)
def test_bad_arguments(named: tuple, message: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(UsageError, match=message):
        open_source(*named, once=False)


def test_files(captures: Path, tmp_path: Path) -> None:
    old = captures / "base_tiny.pcap"
    os.utime(old)
    growing = open_source([str(old)], None, (), None, once=False)
    assert not growing.patient
    replayed = open_source([str(old)], None, (), 10.0, once=False)
    assert not replayed.patient
    assert replayed.tick_s < growing.tick_s
    assert open_source([str(old)], None, (), None, once=True).patient
    with pytest.raises(CaptureNotFound):
        open_source([str(tmp_path / "none.pcap")], None, (), None, once=False)
    with pytest.raises(UsageError, match="only one"):
        open_source([str(captures)], None, (), None, once=True)


def test_silence_counts_when_no_packet_can_be_on_its_way() -> None:
    """The kernel gathers packets for a second before tcpdump gets them."""
    now = [100.0]
    clock = CaptureClock(True, host_clock=lambda: now[0], late_s=1.0)
    clock.read_packet(5_000_000_000)
    seen = []
    for after in (0.5, 1.0, 1.5, 3.0):
        now[0] = 100.0 + after
        seen.append(clock.now_ns)
    assert seen == [5_000_000_000, 5_000_000_000, 5_500_000_000, 7_000_000_000]


def test_live_sources_allow_for_it(captures: Path) -> None:
    assert open_source([str(captures / "base_tiny.pcap")], None, (), None, once=False).clock.late_s == 1.0


def test_waiting_for_a_directory(captures: Path, tmp_path: Path) -> None:
    asked = []

    def waiting() -> None:
        asked.append(1)
        if len(asked) == 3:
            (tmp_path / "a.pcap").write_bytes((captures / "base_tiny.pcap").read_bytes())

    source = open_source([str(tmp_path)], None, (), None, False, waiting)
    assert len(asked) == 3
    assert source.capture.files == ["a.pcap"]


def test_a_program_that_ends_by_itself(programs: Path) -> None:
    """Nothing is watched any more: that is no end of the input."""
    (programs / "header").write_bytes(PCAP_HEADER)
    program(programs, "tcpdump", f"cat {programs}/header\nsleep 0.5\necho 'tcpdump: the network is down' >&2\nexit 1")
    source = Interface("eth0")
    with pytest.raises(CaptureUnreadable, match="tcpdump ended by itself: tcpdump: the network is down"):
        list(source.blocks(Window()))
    source.close()


def test_top_ends_with_code_1_then(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (programs / "header").write_bytes(PCAP_HEADER)
    program(programs, "tcpdump", f"cat {programs}/header\nsleep 0.5\nexit 3")
    assert main(["top", "-i", "eth0", "--every", "1h", "--no-findings"]) == 1
    assert "tcpdump ended by itself" in capsys.readouterr().err


@pytest.mark.parametrize("knows", [True, False])
def test_the_user_that_tcpdump_becomes(knows: bool, programs: Path) -> None:
    """One that was built without -Z captures as it always did."""
    (programs / "header").write_bytes(PCAP_HEADER)
    refuses = "" if knows else 'case "$1" in -Z) echo "tcpdump: invalid option -- \'Z\' (-Z)" >&2; exit 1;; esac\n'
    program(programs, "tcpdump", f'{refuses}cat {programs}/header\necho "$@" > {programs}/asked\nexec sleep 60')
    source = Interface("eth0", user="nobody")
    deadline = time.monotonic() + 30
    while not (programs / "asked").exists() or not (programs / "asked").read_text():
        assert time.monotonic() < deadline
    assert source.as_user == knows
    assert (programs / "asked").read_text().startswith("-Z nobody -i eth0" if knows else "-i eth0")
    source.close()
