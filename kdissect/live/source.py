"""Where live traffic comes from: an interface, a file that grows, a directory that gets files, a pipe, a replay.

Only `tcpdump` (or `dumpcap`) runs with privileges; kdissect reads what it writes. `tcpdump` says on SIGUSR1 how many
packets the kernel dropped (its manual page), `dumpcap` only when it ends.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NoReturn, cast

from kdissect.capture import CaptureSet, Member, open_captures
from kdissect.capture.block import Block
from kdissect.capture.window import Window
from kdissect.live.capture_clock import CaptureClock
from kdissect.live.replay import STEP_S, Replay
from kdissect.problems import CaptureUnreadable, UsageError

PROGRAMS = ("tcpdump", "dumpcap")
BUFFER_KIB = 32 << 10
"""What the kernel holds for us while we are busy: a quarter of a second of 1 Gbit/s. It packs packets into blocks for
that; in tcpdump's immediate mode each has a slot as large as the largest packet (64 KiB), and 512 fill the buffer."""
BLOCK_S = 1.0
"""How late packets come that tcpdump captures: the kernel gives it a block that is not full after so long (its timeout
for libpcap). dumpcap has a quarter of it."""
PIPE_BYTES = 1 << 20
"""Linux's bound for a pipe of a user without privileges (pipe(7))."""
GATHER_S, ENOUGH = 0.1, 128 << 10
"""What comes in small pieces is gathered for so long, unless so many bytes came at once: a look at one packet costs as
much as a look at some thousands."""
TICK_S = 0.25
"""How often rows are handed on, seconds."""
ASK_S = 2.0
"""How often the kernel's drops are asked for."""
FRESH_S = 60.0
"""A file that was written this long ago is not being written any more."""
FOR_ROOT = {"tcpdump": "-U -w - tcp", "dumpcap": "-q -w - -f tcp"}
"""How these write packets of TCP to a pipe as they come."""
_DROPPED = re.compile(rb"(\d+) packets? dropped by kernel")
_DENIED = re.compile(r"permission|not permitted|privilege", re.IGNORECASE)


class Source:
    """A capture to watch. `blocks` may be called once; `stop` ends it from any thread.

    `clock`: what time it is in the capture. `patient`: it is finished and read at once, so that nothing need be
    released before its time. `tick_s`: how often rows of it are handed on; of a replay so often that it is a quarter of
    a second of the capture, if that can be.
    """

    def __init__(self, capture: CaptureSet, *, follow: bool, replay: Replay | None = None, fresh: bool = True) -> None:
        self.capture = capture
        self.replay = replay
        self.patient = not follow and replay is None
        self.clock = CaptureClock(follow and fresh, lambda: 0 if replay is None else replay.now_ns, late_s=BLOCK_S)
        self.tick_s = TICK_S if replay is None else min(TICK_S, max(STEP_S, TICK_S / replay.speed))
        self._follow = follow
        self._stop = threading.Event()

    def blocks(self, window: Window) -> Iterator[Block]:
        """Its blocks through the window; idle ones while nothing comes."""
        blocks = self.capture.blocks(window, self._follow, self._stop.is_set)
        for block in blocks if self.replay is None else self.replay.pieces(blocks):
            if self._stop.is_set():
                return
            yield block
            if self._follow and not block.idle and block.end - block.start < ENOUGH:
                self._stop.wait(GATHER_S)

    @property
    def waits_for_us(self) -> bool:
        """Whether packets stay where they are until they are read."""
        return True

    def behind_s(self, latest_ns: int) -> float:
        """How late the packet captured at `latest_ns` is looked at, seconds."""
        return 0.0 if self.replay is None else self.replay.late_s

    def dropped(self) -> int | None:
        """Packets that the kernel dropped so far; None: not known."""
        reports = [report.dropped for report in self.capture.reports if report.dropped >= 0]
        return sum(reports) if reports else None

    def stop(self) -> None:
        """Read no further."""
        self._stop.set()

    def close(self) -> None:
        """Let go of all that it holds."""
        self.capture.close()


class Interface(Source):
    """A capture by `tcpdump` or `dumpcap` on an interface of this host. `ports`: only these, of TCP. `user`: a user
    that tcpdump, started by root, becomes when it captures; `as_user` says whether it did.

    `blocks` and `dropped` start a thread. Raises CaptureUnreadable in words where it may not capture, or where there is
    no such interface; `blocks` does if the program ends by itself.
    """

    def __init__(self, name: str, ports: Sequence[int] = (), snap: int | None = None, user: str | None = None) -> None:
        program = next((one for one in PROGRAMS if shutil.which(one)), None)
        if program is None:
            raise CaptureUnreadable("Neither tcpdump nor dumpcap is installed: one of them captures for kdissect.")
        self._program = shutil.which(program) or program
        self._asks = program == "tcpdump"
        self._said = bytearray()
        self._dropped: int | None = None
        self._asked = 0.0
        command = self._command(name, ports, snap)
        self.as_user = user is not None and self._asks
        if self.as_user:
            self._start([command[0], "-Z", str(user), *command[1:]])
            if not self._captures() and b"-Z" in self._complaint():  # it was built without
                self._said.clear()
                self.as_user = False
                self._close_pipes()
        if not self.as_user:
            self._start(command)
        assert self._process.stdout is not None
        self._listener = threading.Thread(target=self._listen, daemon=True)
        super().__init__(CaptureSet(name, [Member(name, file=cast(BinaryIO, self._process.stdout))]), follow=True)
        if not self._captures():
            self._refused(name)

    def _start(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is ours: it is ended by `close`, so that what it captured is read
        )  # fmt: skip
        assert self._process.stdout is not None
        _widen(self._process.stdout.fileno())

    def blocks(self, window: Window) -> Iterator[Block]:
        """As of any source."""
        self._start_listening()
        yield from super().blocks(window)
        if not self._stop.is_set():
            self._process.wait()
            self._listener.join(1.0)
            raise CaptureUnreadable(f"{Path(self._program).name} ended by itself: {self._words() or 'it said nothing'}")

    def _command(self, name: str, ports: Sequence[int], snap: int | None) -> list[str]:
        wanted = " or ".join(f"port {port}" for port in ports)
        wanted = f"tcp and ({wanted})" if ports else "tcp"
        cut = ["-s", str(snap)] if snap else []
        if self._asks:
            return [self._program, "-i", name, "-n", "-U", "-B", str(BUFFER_KIB), *cut, "-w", "-", wanted]
        return [self._program, "-i", name, "-q", "-B", str(BUFFER_KIB >> 10), *cut, "-w", "-", "-f", wanted]

    def _listen(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._said += line[: 1 << 12]
            del self._said[: -(1 << 14)]
            found = _DROPPED.search(line)
            if found:
                self._dropped = int(found[1])

    def _captures(self) -> bool:
        """Wait for the first bytes, which come at once where it may capture; whether they came."""
        import select

        while self._process.poll() is None:
            assert self._process.stdout is not None
            if select.select([self._process.stdout], [], [], 0.05)[0]:
                break
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.1)
        return self._process.poll() is None

    def _start_listening(self) -> None:
        if self._listener.ident is None:
            self._listener.start()

    def _complaint(self) -> bytes:
        """The messages of a program that has ended."""
        assert self._process.stderr is not None
        self._said += self._process.stderr.read()
        return bytes(self._said)

    def _words(self) -> str:
        return " ".join(self._said.decode(errors="replace").split())

    def _refused(self, name: str) -> NoReturn:
        self._complaint()
        self.close()
        said = self._words()
        short = Path(self._program).name
        if _DENIED.search(said):
            own, copy = os.path.realpath(self._program), f"/usr/local/bin/{short}"
            raise CaptureUnreadable(
                f"{short} may not capture on {name}. As root it may: sudo {short} -i {name} {FOR_ROOT[short]} | "
                "kdissect top -. To allow a copy of it to the members of one group, who then read all traffic of this "
                f"host: sudo groupadd -f pcap && sudo install -o root -g pcap -m 750 {own} {copy} && sudo setcap "
                f"cap_net_raw+ep {copy} && sudo usermod -aG pcap $USER"
            )
        raise CaptureUnreadable(f"{short} cannot capture on {name}: {said or 'it ended without a word'}")

    @property
    def waits_for_us(self) -> bool:
        """The kernel drops what we do not take in time."""
        return False

    def behind_s(self, latest_ns: int) -> float:
        """By the host's clock, which is the packets'."""
        return max(0.0, time.time() - latest_ns / 1e9) if latest_ns else 0.0

    def dropped(self) -> int | None:
        """The last number known; asks again now and then."""
        self._start_listening()
        if self._asks and time.monotonic() - self._asked > ASK_S and self._process.poll() is None:
            self._asked = time.monotonic()
            with contextlib.suppress(OSError):
                self._process.send_signal(signal.SIGUSR1)
        return self._dropped

    def close(self) -> None:
        """End the program."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2.0)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._listener.is_alive():
            self._listener.join(1.0)
        self._close_pipes()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def _widen(pipe: int) -> None:
    """A pipe that holds more than its usual 64 KiB, where the system lets us."""
    import fcntl

    with contextlib.suppress(OSError, AttributeError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


def open_source(
    captures: Sequence[str], interface: str | None, ports: Sequence[int], speed: float | None, once: bool,
    waiting: Callable[[], None] = lambda: time.sleep(0.1), user: str | None = None,
) -> Source:  # fmt: skip
    """The source that was named: `interface` (`user`: see `Interface`), or one file, directory or `-`. `speed`: replay
    a finished capture. `once`: a file, also one as standard input, is read to its end and not followed. `waiting` is
    called while there is no packet yet.

    Raises UsageError, CaptureError.
    """
    if interface is not None:
        if captures or speed is not None:
            raise UsageError("-i captures on an interface: no file and no --speed with it")
        return Interface(interface, ports, user=user)
    if ports:
        raise UsageError("--port goes with -i: a capture is read whole")
    if len(captures) != 1:
        raise UsageError("say what to watch: -i INTERFACE, one file, a directory of a rotated set, or - for a pipe")
    name = captures[0]
    if name == "-":
        if speed is not None:
            raise UsageError("--speed replays a file, not a pipe")
        _widen(sys.stdin.fileno())
        finished = stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode)
        return Pipe(CaptureSet("-", [Member("-", file=sys.stdin.buffer)]), follow=not (once and finished))
    follow = speed is None and not once
    while follow and not _has_header(Path(name)):
        waiting()
    sets = open_captures(name, growing=follow)
    if len(sets) > 1:
        raise UsageError(f"{name} holds {len(sets)} captures; only one can be watched")
    fresh = any(
        member.path is not None and time.time() - member.path.stat().st_mtime < FRESH_S for member in sets[0].members
    )
    return Source(sets[0], follow=follow, replay=None if speed is None else Replay(speed), fresh=fresh)


class Pipe(Source):
    """Standard input."""

    def behind_s(self, latest_ns: int) -> float:
        """By the host's clock where packets come as they are captured, as from a tcpdump on this host."""
        late = time.time() - latest_ns / 1e9 if latest_ns else 0.0
        return late if 0 < late < FRESH_S else 0.0


def _has_header(path: Path) -> bool:
    """Whether a file has a header, or a directory such a file; a path that is neither fails when it is opened."""
    if path.is_dir():
        return any(one.is_file() and one.stat().st_size >= 24 for one in path.rglob("[!.]*"))
    return not path.is_file() or path.stat().st_size >= 24
