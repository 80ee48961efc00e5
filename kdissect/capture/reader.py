"""Reading one file of a capture set: fills the window, walks the records, steps over damage.

States of a reader: *walking* (records follow one another), *lost* (after damage, seeking). Walking becomes lost when a
walk stops as DAMAGED; lost becomes walking when a seek says FOUND. An UNDECIDED seek waits for more bytes. The input's
end is never damage: what it cuts is reported as cut.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from kdissect.capture import pcap as r
from kdissect.capture.block import Block
from kdissect.capture.bytestreams import OpenFile, PlainFile, Stream
from kdissect.capture.condition import OVERWRITTEN, Condition, Interface
from kdissect.capture.magic import PCAP_HEADER, Format, recognise
from kdissect.capture.pcap import INTERFACE
from kdissect.capture.pcapng import seek_pcapng, walk_pcapng
from kdissect.capture.steps import FILE_SHIFT, MAX_STEPS, Steps
from kdissect.capture.window import Window
from kdissect.kernels.structs import rows_of
from kdissect.problems import Kind

MAX_RECORD = 1 << 20
"""Largest packet record believed: twice the largest packet that Linux builds (BIG TCP, 512 KiB), four times tcpdump's
bound."""
MAX_BLOCK = 12 << 20
"""Largest pcapng block believed, as far as a slot can hold it; name resolution and secrets stay well below, and an
interface's description would need two hundred options of the largest size."""
NEVER = 1 << 62
"""if_tsoffset (seconds) that no time can have."""
INTERFACE_BLOCK = 1
"""Type of a pcapng block that describes an interface."""
MAX_PACKETS = 1 << 17
"""Packet rows of one block, which is cut where it holds more: 16 MiB are 204,600 of the smallest TCP packets (66 bytes
and a 16-byte header), 92,000 of small Kafka frames."""
MAX_DAMAGE = 1000
"""Damaged places after which the rest of a file is given up: each costs a search and is not worth more."""
MAX_INTERFACES = 1 << 16
"""pcapng interfaces, all sections together; a thousand files of 64 interfaces each, put one after the other, fit."""
MAX_NOTES = 256
"""Names and secrets picked up per walk."""
MAX_NAMED = 64
"""Interfaces that get a row of their own in the report."""
_REPORTED = [INTERFACE.link_type, INTERFACE.snap, INTERFACE.packets, INTERFACE.received]
"""What a report has of an interface, beside its name and the packets that were dropped."""
MIN_ROOM = 1 << 14
"""A slot with less room than this is full: a read this small costs more than it brings."""
POLL_SECONDS = 0.25
"""How often a growing file or a quiet pipe is looked at while following."""


class FileReader:
    """Reads one file into blocks. `recognised` stays None when the bytes are no capture."""

    def __init__(self, capture: Condition, file: int, stream: Stream, window: Window) -> None:
        self.capture = capture
        self.file = file
        self.stream = stream
        self.window = window
        self.report = capture.reports[file]
        self.report.compression = stream.compression
        self.state: NDArray[np.int64] = np.zeros(r.STATE_SIZE, np.int64)
        self.walked = r.file_at(self.state, 0)
        """The same by the names of its fields."""
        self.interfaces: NDArray[np.int64] = np.zeros((1, r.INTERFACE_SIZE), np.int64)
        self.notes: NDArray[np.int64] = np.zeros((MAX_NOTES, r.NOTE_SIZE), np.int64)
        self.names: dict[int, str] = {}
        self._steps = Steps()
        self.recognised: Format | None = None
        self.base = window.end
        self.head = b""
        self._limit = 0
        self._lost_from = -1  # logical offset where damage began, -1 while walking
        self._lost_why = ""
        self._given_up = False
        self.stopped = False
        """Following ended before the input did."""

    def blocks(
        self,
        rows: NDArray[np.int64],
        follow: bool,
        stopped: Callable[[], bool],
        complete: Callable[[], bool] = lambda: False,
        last: bool = False,
    ) -> Iterator[Block]:
        """The file's blocks; `last`: no file comes behind it. Ends at the end of the input; while following, when
        `stopped()`, asked after every block and while it is quiet. Or at the input's end once `complete()` says that
        nothing is written any more."""
        cursor = self.base  # logical offset of the next byte to walk
        ended = False
        while not ended and not self._given_up:
            got, ended = self._fill(cursor, follow)
            if got == 0 and follow and not ended:
                if complete():
                    follow = False
                    continue
                if stopped():
                    self.stopped = True
                    break
                yield self._block(rows[:0], cursor)
                continue
            if self.recognised is None:
                if self.window.end - self.base < PCAP_HEADER and not ended:
                    continue
                if not self._recognise():
                    return
                assert self.recognised is not None
                cursor = self.base + self.recognised.start
            while True:
                if self._lost_from >= 0:
                    cursor = self._seek(cursor, ended)
                    if self._lost_from >= 0:
                        break
                first = cursor
                interfaces = int(self.walked.interfaces)
                n, cursor, why = self._walk(cursor, rows)
                self._note_steps(rows[:n], interfaces)
                self._read_notes()
                self._update()
                if n:
                    yield self._block(rows[:n], first, cursor, last and ended and why == r.MORE)
                if why == r.MORE:
                    break
                if why == r.DAMAGED:
                    self._damage(cursor)
                    if self._given_up:
                        break
            if follow and not ended and stopped():
                self.stopped = True
                break
        self._finish(cursor)

    def _fill(self, cursor: int, follow: bool) -> tuple[int, bool]:
        """Read on into the window; bytes read and whether the input ended."""
        window = self.window
        if window.room < MIN_ROOM:
            start = window.position(cursor) if cursor < window.end else 0
            size = window.end - cursor
            if size > window.slot_bytes - MIN_ROOM:  # only an undecided seek in a small ring gets here: let it go
                size = 0
                cursor = window.end
            window.advance(cursor, start, start + size)
        target = window.target()
        if follow and isinstance(self.stream, PlainFile) and self.stream.is_overwritten():
            self.stream.problem = self.stream.problem or OVERWRITTEN
            self.capture.overwritten_files.append(self.report.name)
            return 0, True
        if not follow or isinstance(self.stream, PlainFile):
            got = self.stream.readinto(target)
            ended = got < len(target)
            if follow and ended:
                ended = False
                if got == 0:
                    time.sleep(POLL_SECONDS)
        elif isinstance(self.stream, OpenFile):
            if not self.stream.waiting(POLL_SECONDS):
                return 0, False
            got = self.stream.read_some(target)
            ended = got == 0
        else:
            got = self.stream.readinto(target)
            ended = got < len(target)
        window.grow(got)
        return got, ended

    def _recognise(self) -> bool:
        start = self.window.position(self.base)
        head = self.window.data[start : start + min(PCAP_HEADER, self.window.end - self.base)].tobytes()
        self.head = head
        form = self.recognised = recognise(head)
        if form is None:
            return False
        self.report.format = form.name
        if form.name == "pcap":
            self._limit = min(MAX_RECORD, self.window.slot_bytes - 2 * MIN_ROOM)
            self.interfaces[0, INTERFACE.link_type] = form.link_type
            self.interfaces[0, INTERFACE.snap] = form.snap_length
            self.interfaces[0, INTERFACE.received : INTERFACE.os_dropped + 1] = -1
            self.walked.interfaces = 1
        else:
            self._limit = min(MAX_BLOCK, self.window.slot_bytes - 2 * MIN_ROOM)
            self.interfaces = np.zeros((MAX_INTERFACES, r.INTERFACE_SIZE), np.int64)
        return True

    def _walk(self, cursor: int, rows: NDArray[np.int64]) -> tuple[int, int, int]:
        window, form = self.window, self.recognised
        assert form is not None
        at = window.position(cursor)
        end = at + window.end - cursor
        if form.name == "pcap":
            n, stop, why = r.walk_pcap(
                window.data, at, end, form.big, form.header, form.tick, self._limit, self.interfaces, self.state, rows
            )
        else:
            n, stop, why = walk_pcapng(window.data, at, end, self._limit, self.interfaces, self.state, self.notes, rows)
        window.count += n
        return n, cursor + stop - at, why

    def _block(self, rows: NDArray[np.int64], first: int, end: int | None = None, last: bool = False) -> Block:
        window = self.window
        delta = int(window.slots[window.current, 0] - window.slots[window.current, 2])
        stop = first if end is None else end
        return Block(self.file, window, window.current, first - delta, stop - delta, delta, rows, last)

    def _damage(self, cursor: int) -> None:
        """Note where and why the walk lost its way."""
        self.report.damaged_places += 1
        at = self.window.position(cursor)
        form = self.recognised
        assert form is not None
        if form.name == "pcap":
            size = int(r.u32(self.window.data, at + 8, form.big))
            self._lost_why = f"the record claims {size} bytes" if size else "the record header holds only zeros"
        else:
            big = bool(self.walked.big)
            kind, size = (int(r.u32(self.window.data, at + o, big)) for o in (0, 4))
            self._lost_why = f"the block of type {kind:#x} claims {size} bytes"
            if kind == INTERFACE_BLOCK and size > self._limit:
                self._lost_why += ", too many for the description of an interface, which stays unknown"
                self._undescribed()
        self._lost_from = cursor
        if self.report.damaged_places > MAX_DAMAGE:
            self._given_up = True
            self._lost_why += f"; more than {MAX_DAMAGE} damaged places, the rest of the file is not read"

    def _undescribed(self) -> None:
        """Keep the place of an interface whose description is not read: others keep their numbers, and its packets have
        neither a link type nor times."""
        number = int(self.walked.interfaces)
        if number < len(self.interfaces):
            row = self.interfaces[number]
            row[:] = 0
            row[INTERFACE.link_type], row[INTERFACE.factor], row[INTERFACE.offset] = r.UNKNOWN_LINK, 1, NEVER
            row[INTERFACE.received : INTERFACE.os_dropped + 1] = -1
            self.walked.interfaces += 1

    def _seek(self, cursor: int, final: bool) -> int:
        """Look for the next place where records follow one another; the cursor to go on from."""
        window, form = self.window, self.recognised
        assert form is not None
        cursor = max(cursor, self._lost_from + 1)
        if cursor >= window.end:
            return window.end
        at = window.position(cursor)
        end = at + window.end - cursor
        if form.name == "pcap":
            fractions = 1_000_000_000 // form.tick
            last = int(self.walked.last) // 1_000_000_000 if self.walked.timed else 0
            stop, found = r.seek_pcap(window.data, at, end, form.big, form.header, fractions, last, final)
        else:
            stop, found = seek_pcapng(window.data, at, end, self._limit, bool(self.walked.big), final)
        cursor += stop - at
        if found == r.FOUND:
            self._regain(cursor, "reading went on")
        return cursor

    def _regain(self, cursor: int, outcome: str) -> None:
        skipped = cursor - self._lost_from
        self.report.skipped_bytes += skipped
        detail = f"{self._lost_why}; {outcome} after {skipped} bytes"
        self._problem(self._lost_from, detail, skipped)
        self._lost_from = -1

    def _problem(self, logical: int, detail: str, size: int = 0) -> None:
        at = int(self.walked.last) if self.walked.timed else 0
        where = f"byte {logical - self.base}" if logical >= 0 else self.report.name
        number = int(self.walked.numbered) + 1 if logical >= 0 else 0
        self.capture.add_problem(self.file, number, at, where, detail, size)

    def _note_steps(self, rows: NDArray[np.int64], interfaces: int) -> None:
        """Say where the clock stepped back in the rows of a walk, before which there were so many interfaces."""
        notes = rows_of(r.Note, self.notes[: self.walked.notes])
        described = notes["at"][notes["kind"] & 0xFFFFFFFF == INTERFACE_BLOCK].tolist()
        whole = len(described) == self.walked.interfaces - interfaces
        for step in self._steps.look(rows, self.walked, described if whole else None):
            detail = (
                f"{step.back / 1e6:,.3f} ms earlier than the packet before it: the clock stepped back, or packets lie "
                "in the file out of order"
            )
            self.capture.add_problem(self.file, step.packet, step.at, "clock", detail, kind=Kind.CLOCK_STEP)
            if self.walked.interfaces == 1 and len(self.capture.steps) < MAX_STEPS:
                self.capture.steps.append(self.file << FILE_SHIFT | step.packet)

    def _read_notes(self) -> None:
        """Names of interfaces and addresses, and TLS secrets, that the walk came by."""
        for kind, at, size, value in self.notes[: self.walked.notes].tolist():
            body = self.window.data[at : at + size].tobytes()
            order = "big" if kind >> 40 else "little"
            if kind & 0xFFFFFFFF == 10:
                length = value & 0xFFFFFFFF
                if value >> 32 == 0x544C534B:  # "TLSK": an SSLKEYLOGFILE
                    self.capture.secrets.append(body[16 : 16 + min(length, size - 20)])
            elif kind & 0xFFFFFFFF == 4:
                self.capture.learn_host_names(body, order == "big")
            elif len(self.names) < MAX_NAMED:
                self.names[value] = _interface_name(body, order)
        self.walked.notes = 0

    def _update(self) -> None:
        """Bring the file's report up to date."""
        walked, report = self.walked, self.report
        report.packets, report.timed = int(walked.count), int(walked.timed)
        report.first, report.last = int(walked.first), int(walked.latest)
        report.captured_bytes, report.original_bytes = int(walked.captured_bytes), int(walked.original_bytes)
        report.snapped, report.over_original = int(walked.snapped), int(walked.over)
        report.backwards, report.clock_steps, report.untimed = (
            int(count) for count in (walked.backwards, walked.steps, walked.untimed)
        )
        count = int(walked.interfaces)
        drops = self.interfaces[:count, [INTERFACE.dropped, INTERFACE.os_dropped]].max(axis=1, initial=-1)
        report.dropped = int(drops[drops >= 0].sum()) if (drops >= 0).any() else -1
        shown = self.interfaces[: min(count, MAX_NAMED), _REPORTED].tolist()
        report.interfaces = [
            Interface(self.names.get(i, ""), link_type, snap, packets, received, int(drops[i]))
            for i, (link_type, snap, packets, received) in enumerate(shown)
        ]

    def _finish(self, cursor: int) -> None:
        """Say what the end of the input cut, and what the file as a whole is odd in."""
        if self.recognised is None:
            return
        left = self.window.end - cursor
        if self._lost_from >= 0:
            self._regain(self.window.end, "nothing readable followed; given up")
        elif left and not self.stopped:
            self.report.cut = True
            self._problem(cursor, f"the file ends inside a record, of which {left} bytes are there", left)
        if self.stream.problem:
            self.report.cut = True
            self._problem(self.window.end, self.stream.problem)
        for count, text in (
            (self.walked.untimed, "packets carry no time; they got the time of the packet before them"),
            (
                self.walked.unknown_interface,
                "packets name an interface that the file does not describe; they are not decoded",
            ),
            (self.walked.lost_notes, f"interfaces beyond {MAX_INTERFACES}, or secrets and names, were not read"),
        ):
            if count:
                self._problem(-1, f"{int(count)} {text}")
        self._update()


def _interface_name(body: bytes, order: str) -> str:
    """if_name (option 2) of an Interface Description Block."""
    at = 16
    while at + 4 <= len(body) - 4:
        code, length = (int.from_bytes(body[at + o : at + o + 2], order) for o in (0, 2))  # type: ignore[arg-type]
        if code == 0:
            break
        if code == 2:
            return body[at + 4 : at + 4 + length].decode("utf-8", "replace")
        at += 4 + (length + 3 & ~3)
    return ""
