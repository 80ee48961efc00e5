"""The state of a capture file: its format, its end, and its problems."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kdissect.capture.name_blocks import add_name, names_in_block
from kdissect.problems import Kind

MAX_PROBLEMS = 1000
"""Problem rows kept for one capture set: more of them tell nobody more."""
OVERWRITTEN = "another capture was written over it, which is not read"
LINK_NAMES = {
    0: "NULL",
    1: "EN10MB",
    9: "PPP",
    12: "RAW",
    14: "RAW",
    101: "RAW",
    105: "IEEE802_11",
    108: "LOOP",
    113: "LINUX_SLL",
    127: "IEEE802_11_RADIOTAP",
    192: "PPI",
    228: "IPV4",
    229: "IPV6",
    276: "LINUX_SLL2",
}
"""Names of link types (tcpdump.org/linktypes.html) without their LINKTYPE_ prefix."""


def link_name(link_type: int) -> str:
    """The name of a link type, `LINKTYPE n` for those we have no name for."""
    return LINK_NAMES.get(link_type, f"LINKTYPE {link_type}")


@dataclass(slots=True, eq=False, repr=False)
class CaptureProblem:
    """One thing wrong with a capture file. `packet` 0: none; `at` (ns) 0: no time; `bytes` lost, 0: unknown."""

    file: int
    packet: int
    at: int
    where: str
    detail: str
    bytes: int = 0
    kind: Kind = Kind.CAPTURE


class Interface(NamedTuple):
    """A pcapng interface (pcap files have one without a name). Counts are -1 where the file does not tell them."""

    name: str
    link_type: int
    snap_length: int
    packets: int
    received: int
    dropped: int


@dataclass(slots=True, eq=False, repr=False)
class FileReport:
    """Facts about one file, up to date after every block. Times in ns (0 while `timed` is 0), sizes in bytes."""

    name: str
    format: str = ""
    compression: str = ""
    packets: int = 0
    timed: int = 0
    first: int = 0
    last: int = 0
    captured_bytes: int = 0
    original_bytes: int = 0
    snapped: int = 0
    over_original: int = 0
    backwards: int = 0
    clock_steps: int = 0
    untimed: int = 0
    dropped: int = -1
    damaged_places: int = 0
    skipped_bytes: int = 0
    cut: bool = False
    interfaces: list[Interface] = field(default_factory=list)

    @property
    def link_types(self) -> list[str]:
        """Names of the link types, each once, in order of appearance."""
        return list(dict.fromkeys(link_name(i.link_type) for i in self.interfaces))

    @property
    def snap_length(self) -> int:
        """The smallest snap length of its interfaces; 0 where none is stated."""
        return min((i.snap_length for i in self.interfaces if i.snap_length), default=0)


class Condition:
    """The results of reading the files of a capture: a report for each file, and problems."""

    def __init__(self, files: Sequence[str]) -> None:
        self.reports: list[FileReport] = [FileReport(name) for name in files]
        """A row for each file, filled as it is read."""
        self.problems: list[CaptureProblem] = []
        self.secrets: list[bytes] = []
        """TLS key logs from pcapng decryption secrets blocks, as they were met."""
        self.host_names: dict[str, str] = {}
        """Address -> its first name, of pcapng name resolution blocks met by now."""
        self.steps: list[int] = []
        """Packets that follow a step back of the clock (`kdissect.capture.steps`), number | file << 40, the first
        MAX_STEPS of them; of files with several interfaces none, for which one's clock stepped is not all's."""
        self.overwritten_files: list[str] = []
        """The names of files that another capture was written over while they were followed."""
        self._lost_problems = 0

    @property
    def lost_problems(self) -> int:
        """How many problem rows were left out beyond MAX_PROBLEMS."""
        return self._lost_problems

    def forget(self, files: Sequence[str]) -> None:
        """Start again, with these files: none of them was read."""
        self.problems.clear()
        self.secrets.clear()
        self.host_names.clear()
        self.steps.clear()
        self.overwritten_files.clear()
        self._lost_problems = 0
        self.reports[:] = [FileReport(name) for name in files]

    def learn_host_names(self, block: bytes, big_endian: bool) -> None:
        """Take the names from a name resolution block."""
        for address, name in names_in_block(block, big_endian):
            add_name(self.host_names, address, name)

    def add_problem(
        self, file: int, packet: int, at: int, where: str, detail: str, size: int = 0, kind: Kind = Kind.CAPTURE
    ) -> None:
        """Add a problem row; beyond MAX_PROBLEMS only the last row's count goes up."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(CaptureProblem(file, packet, at, where, detail, size, kind))
            return
        self.lose_problems(1)

    def lose_problems(self, count: int) -> None:
        """So many more problem rows were left out; the last one says how many."""
        if not count:
            return
        self._lost_problems += count
        last = self.problems[-1]
        last.detail = last.detail.split(" (and ")[0] + f" (and {self._lost_problems} more problems)"
