"""One command against everything that SECURITY.md promises of hostile input:
`python -m tests.fuzz.adversary INPUTS SECONDS [SEED]`.

An input follows from its seed alone. Its kind is one of KINDS; each is read by a subcommand in turn, in this process,
and again in another way. An input is found if it raises, takes too long (CPU time), leaves a file open, gives exchanges
that never were, keeps a planted text after `redact`, sends control characters, or differs by the way it is read. Its
seed is written to `tests/fuzz/found_seeds.txt` before the next input is made; a test reads it again for ever.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import resource
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import kdissect
from kdissect.cli.main import main as command_line
from kdissect.problems import CaptureError
from tests import sown
from tests.fuzz.campaign import LONGEST, SEEDS
from tests.fuzz.metamorphic import SEEDS as RECORDINGS
from tests.fuzz.metamorphic import Packet, packets_of, rows_of, small_blocks, written
from tests.fuzz.mutation import mutate
from tests.kafka.test_proof import conversation, greetings
from tests.oracle.material import CAPTURES

FOUND_SEEDS = Path(__file__).parent / "found_seeds.txt"
NIGHTLY = 100_000
"""Inputs where no number is given."""
HEADERS = 54
"""Bytes of a packet of these recordings before its payload."""
PACKETS = 200
"""Of a recording."""
INTERRUPTED = (129, 130, 143)
"""Exit codes of a command that SIGHUP, Ctrl-C or SIGTERM ended."""
HOSTILE = (
    "\x1b[2J",
    "\x1b]0;x\x07",
    "\u202e",
    "\u200b",
    "\x00",
    "\r\n",
    "=cmd|'/c'!A1",
    "<script>",
    "'; drop table",
    "%s%n",
)
"""What names say that are no names."""
CONTROLS = {*map(chr, range(32)), "\x7f", *map(chr, range(0x80, 0xA0)), "\u202e", "\u200b"} - {"\n"}
"""Characters that no terminal may get from a capture."""


@dataclass(frozen=True)
class Input:
    """A hostile capture, and what is known of it."""

    seed: int
    kind: str
    data: bytes
    keys: str | None = None
    exchanges: frozenset[Any] | None = None
    """All exchanges that there can be; None: it is not known."""
    secret: Callable[[bytes], bool] | None = None
    """Whether a redacted copy still has a planted text."""


@dataclass
class Verdict:
    """What a campaign found."""

    inputs: int = 0
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    commands: Counter[str] = field(default_factory=Counter)
    found: list[tuple[int, str, str]] = field(default_factory=list)
    """Seed, what went wrong, and how it shows."""


# ---- inputs


def combined_damage(packets: list[Packet], chance: random.Random) -> list[Packet]:
    """One side alone, a late beginning, an early end, loss, duplicates, another order, snap lengths: any of them
    together. No byte is changed."""
    out = list(packets)
    if chance.random() < 0.4:
        ports = Counter(one[1][34:36] for one in out) + Counter(one[1][36:38] for one in out)
        busy = ports.most_common(1)[0][0]
        place = chance.choice((34, 36))
        out = [one for one in out if one[1][place : place + 2] == busy] or out
    if chance.random() < 0.4:
        out = out[chance.randrange(len(out)) :]
    if chance.random() < 0.2:
        out = out[: chance.randrange(1, len(out) + 1)]
    if chance.random() < 0.4:
        rate = chance.choice((0.01, 0.1, 0.3))
        out = [one for one in out if chance.random() >= rate]
    if chance.random() < 0.3:
        out = [one for packet in out for one in [packet] * (1 + (chance.random() < 0.2))]
    if chance.random() < 0.3:
        order = sorted(range(len(out)), key=lambda n: n + chance.choice((0, 0, 0, 3)))
        times = [when for when, *_ in out]
        out = [(times[n], *out[at][1:]) for n, at in enumerate(order)]
    if chance.random() < 0.4:
        snap = chance.choice((58, 64, 70, 80, 96, 128, 200))
        some = chance.choice((0.1, 1.0))
        out = [(when, data[:snap] if chance.random() < some else data, size) for when, data, size in out]
    return out


@cache
def recording(name: str) -> tuple[list[Packet], frozenset[Any]]:
    """Its packets and its exchanges."""
    data = (CAPTURES / name).read_bytes()
    return packets_of(data), exchanges_of(io.BytesIO(data))


def exchanges_of(source: Any) -> frozenset[Any]:
    """What tells exchanges from others: both endpoints, API, correlation id."""
    columns = ["client_ip", "client_port", "broker_ip", "broker_port", "api", "correlation_id"]
    table = kdissect.open(source, jobs=1).table("exchanges", columns=columns)
    rows = zip(*(table[name].to_pylist() for name in columns), strict=True)
    return frozenset((frozenset(((a, b), (c, d))), api, number) for a, b, c, d, api, number in rows)


def invented(found: frozenset[Any], real: frozenset[Any]) -> list[str]:
    """Exchanges among `found` that there were not. A response alone does not tell its API."""
    numbers = {(ends, number) for ends, _, number in real}
    return sorted(str(one) for one in found - real if one[1] is not None or (one[0], one[2]) not in numbers)


def mutant(seed: int, chance: random.Random) -> Input:
    """A capture file with bytes changed, cut, repeated."""
    name = chance.choice(SEEDS)
    keys = CAPTURES / f"{name.split('.')[0]}.keys.log"
    return Input(seed, "mutant", mutate((CAPTURES / name).read_bytes(), chance), str(keys) if keys.exists() else None)


def damaged(seed: int, chance: random.Random) -> Input:
    """Part of a recording with combined damage."""
    packets, exchanges = recording(chance.choice([name for name in RECORDINGS if name != "raw_reuse.pcap"]))
    first = chance.randrange(max(1, len(packets) - PACKETS))
    return Input(seed, "damaged", written(combined_damage(packets[first : first + PACKETS], chance)), None, exchanges)


def planted(seed: int, chance: random.Random) -> Input:
    """Messages of some layouts, or logins, with a marker in each text, damaged."""
    sower = sown.Sower()
    logins = chance.random() < 0.4
    talks = sown.logins(sower) if logins else some_messages(sower, chance)
    damage = combined_damage([(when, data, len(data)) for when, data in sown.packets(talks)], chance)
    keeps = sower.named()

    def left(safe: bytes) -> bool:
        return bool(sown.FRAGMENT.search(safe) if logins else set(sown.MARKER.findall(safe)) - keeps)

    return Input(seed, "planted", written(damage), secret=left)


def some_messages(text: sown.Text, chance: random.Random) -> list[sown.Talk]:
    """Connections of 20 layouts."""
    every = list(sown.layouts())
    first = chance.randrange(max(1, len(every) - 20))
    return sown.messages_of(every[first : first + 20], text)


def hostile_names(seed: int, chance: random.Random) -> Input:
    """Texts that would do something to a terminal, a spreadsheet or a page."""
    talks = some_messages(lambda item: (chance.choice(HOSTILE) * chance.randint(1, 3)).encode(), chance)
    damage = [(when, data, len(data)) for when, data in sown.packets(talks)]
    return Input(seed, "hostile names", written(combined_damage(damage, chance) if chance.random() < 0.3 else damage))


def not_kafka(seed: int, chance: random.Random) -> Input:
    """Servers that speak first, and clients that say anything, damaged."""
    talks = []
    for n in range(8):
        turns = [(1, chance.choice(greetings(200)))]
        turns += [(chance.randrange(2), chance.randbytes(chance.randint(1, 120))) for _ in range(chance.randrange(3))]
        talks.append(conversation(*turns, opened=chance.random() < 0.7, client=10_000 + n))
    packets = sorted(packet for talk in talks for packet in talk.packets)
    damage = combined_damage([(when, data, len(data)) for when, data in packets], chance)
    return Input(seed, "not Kafka", written(damage), exchanges=frozenset())


KINDS = (mutant, damaged, damaged, planted, hostile_names, not_kafka)


def adversarial(seed: int) -> Input:
    """The input of a seed."""
    return KINDS[seed % len(KINDS)](seed, random.Random(seed))


# ---- what reads them


def lines(path: str, out: str, chance: random.Random) -> list[list[str]]:
    """Command lines that read a capture."""
    frame = str(chance.randrange(1, 60))
    return [
        [path], [path, "--html", f"{out}/r.html"], [path, "--table", "records", "--reveal", "--format", "csv"],
        [path, "--table", "problems", "--format", "jsonl"], [path, "-o", f"{out}/tables/"],
        [path, "--messages", "Metadata.response"], ["show", path, "--frame", frame], ["sessions", path],
        ["timeline", path], ["latency", path, "--by", "client,topic"], ["budget", path], ["diff", path, path],
        ["stream", path, "--client", "c"], ["sql", path, "select api, count(*) from exchanges group by api"],
        ["traffic", path], ["whatif", path, "--linger", "5ms"],
        ["cut", path, "--frame", frame, "-o", f"{out}/c.pcap"],
        ["redact", path, "-o", f"{out}/safe.pcap"], ["redact", path, "--check"],
        ["top", path, "--once", "--no-findings"],
        ["annotate", path, "-o", f"{out}/a.pcapng"], ["why", path, "1"],
        ["slowest", path], ["errors", path], ["gaps", path], ["hops", path],
        ["otlp", path, "-o", f"{out}/spans.jsonl"],
    ]  # fmt: skip


def run(line: list[str]) -> tuple[int, str]:
    """Exit code of a command in this process, and what it would have shown. Raises what it must not raise."""
    shown, told = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(told):
        code = command_line(line)
    if code in INTERRUPTED:  # by whoever runs the campaign: it found nothing
        raise KeyboardInterrupt
    shown.flush()
    return code, shown.buffer.getvalue().decode("utf-8", "replace") + told.getvalue()  # type: ignore[attr-defined]


def temporary_files() -> Counter[str]:
    """Temporary files that this process holds open, also those that were deleted. Copies of the standard streams,
    which libraries make once, are none."""
    held: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # that of the folder itself
            held[os.readlink(f"/proc/self/fd/{number}")] += 1
    streams = {os.readlink(f"/proc/self/fd/{number}") for number in range(3)}
    return Counter(
        {path: n for path, n in held.items() if path.startswith(tempfile.gettempdir()) and path not in streams}
    )


def faults(one: Input, folder: Path) -> Iterator[tuple[str, str]]:
    """What goes wrong with an input."""
    chance = random.Random(one.seed)
    path = folder / "in.pcap"
    path.write_bytes(one.data)
    keyed = [] if one.keys is None else ["--keylog", one.keys]
    every = lines(str(path), str(folder), chance)
    line = every[one.seed // len(KINDS) % len(every)]
    started, before = time.process_time(), temporary_files()
    code, shown = run([*line, *([] if line[0] == "top" else keyed)])
    if code not in (0, 1, 2):
        yield "raised", f"exit code {code}: {line}"
    data = "--format" in line or "--messages" in line  # exact where it goes to a pipe, as here
    if not data and CONTROLS & set(shown):
        yield "control characters", f"{line}: {sorted(map(ascii, CONTROLS & set(shown)))}"
    if one.exchanges is not None:
        with contextlib.suppress(CaptureError):
            never = invented(exchanges_of(str(path)), one.exchanges)
            if never:
                yield "invented", str(never[:2])
    if one.secret is not None:
        with contextlib.suppress(CaptureError):
            kdissect.open(path).redact(folder / "redacted.pcap")
            if one.secret((folder / "redacted.pcap").read_bytes()):
                yield "a planted text stayed", one.kind
    if one.kind in ("damaged", "not Kafka"):
        with contextlib.suppress(CaptureError):
            whole = rows_of(str(path), jobs=1)
            with small_blocks():
                other = rows_of(str(path), jobs=2)
            if whole != other:
                yield "another result", str([name for name in whole if whole[name] != other[name]])
    took = time.process_time() - started
    if temporary_files() - before:
        yield "a file stayed open", f"{line}: {sorted(temporary_files() - before)}"
    if took > LONGEST:
        yield "hung", f"{took:.0f} s of CPU time: {line}"


def judge(seed: int, folder: Path) -> Iterator[tuple[str, str]]:
    """As `faults`, of the input of a seed; what raises is one."""
    try:
        yield from faults(adversarial(seed), folder)
    except Exception:
        yield "raised", traceback.format_exc(limit=-4)


def campaign(
    most: int, seconds: float, seed: int = 1, report: Callable[[int, str, str], None] = lambda *_: None
) -> Verdict:
    """Judge inputs of one seed after the other, at most so many and for so long. `report` gets the seed, what went
    wrong and how it shows, as soon as it is found."""
    verdict, started = Verdict(), time.monotonic()
    for number in range(seed, seed + most):
        if time.monotonic() - started > seconds:
            break
        with tempfile.TemporaryDirectory() as folder:
            for what, how in judge(number, Path(folder)):
                verdict.found.append((number, what, how))
                report(number, what, how)
        verdict.inputs += 1
        verdict.kinds[KINDS[number % len(KINDS)].__name__] += 1
    verdict.seconds = time.monotonic() - started
    return verdict


def keep_seed(number: int, what: str, how: str) -> None:
    """Append a seed to the file of seeds, and print how it shows. A campaign that is killed later loses nothing."""
    print(number, what, how, flush=True)
    with FOUND_SEEDS.open("a") as file:
        file.write(f"{number} {what}\n")


def found_seeds() -> list[int]:
    """Seeds that once found something."""
    if not FOUND_SEEDS.exists():
        return []
    return [int(line.split()[0]) for line in FOUND_SEEDS.read_text().splitlines() if line and line[0].isdigit()]


def main() -> None:
    most = int(sys.argv[1]) if len(sys.argv) > 1 else NIGHTLY
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else float("inf")
    verdict = campaign(most, seconds, int(sys.argv[3]) if len(sys.argv) > 3 else 1, keep_seed)
    counts = Counter(what for _, what, _ in verdict.found)
    print(
        f"{verdict.inputs} inputs in {verdict.seconds:.0f} s, {time.process_time():.0f} s of CPU time, "
        f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MB at most "
        f"({dict(verdict.kinds)}): {dict(counts) or 'nothing found'}"
    )
    sys.exit(bool(verdict.found))


if __name__ == "__main__":
    main()
