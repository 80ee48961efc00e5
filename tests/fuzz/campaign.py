"""Campaigns of mutated input, for as long as asked:
`python -m tests.fuzz.campaign frames|captures SECONDS [SEED [INPUTS]]`. With
`NUMBA_DISABLE_JIT=1` the kernels are Python, where no integer wraps.

An input that raises, hangs or takes memory beyond the bound is written to `tests/fuzz/found/`, where a test reads it
again for ever.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import random
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

import kdissect
from kdissect.capture import sources
from kdissect.kafka.exchanges.messages import Decoder
from kdissect.kernels.kernel import PLAIN
from kdissect.problems import CaptureError
from tests.fuzz.mutation import mutate, mutate_many
from tests.oracle import wire
from tests.oracle.material import CAPTURES, material

FOUND = Path(__file__).parent / "found"
LONGEST = 30.0 * (100 if PLAIN else 1)
"""Seconds of CPU that one small capture, or a lot of them, may take; they take some hundredths. A campaign runs for
hours beside other work, so the wall's clock says little; what sleeps for ever is stopped by who started it."""
MOST_MEMORY = 1 << 30
"""Resident bytes of the whole process, test frameworks included."""
KEYS = CAPTURES / "tls12.keys.log"
TOGETHER = 25
"""Captures of a long campaign that are read in one pass."""
FRAMES_OF = ("sweep_391_kraft", "k4_admin_sweep", "sweep_0110", "k4_share_group")
SEEDS = (
    "base_tiny.pcap", "field_cut.pcapng", "field_two_sections.pcapng", "field_two_interfaces.pcapng",
    "field_vxlan.pcap", "field_ip_fragments.pcap", "field_erspan.pcap", "field_incl_over_orig.pcap", "sasl_old.pcap",
    "tls12.pcap", "tls13.pcap", "raw_ids.pcap", "raw_errors.pcap", "field_gz.pcap.gz", "field_zst.pcap.zst",
)  # fmt: skip
TABLES = ("exchanges", "connections", "fetch_partitions", "record_batches", "groups", "problems", "findings")
EVERY = 4
"""In a long campaign every fourth lot goes through all of the tables; the others stop before the analysis."""
WIRE = ("status", "api", "api_version", "client_id", "error_code", "error_count", "latency_ms", "request_bytes")


@dataclass
class Tally:
    """What a campaign did."""

    inputs: int = 0
    read: int = 0
    """Inputs (or frames) that were still readable as a whole."""
    seconds: float = 0.0


@cache
def corpus() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Bodies of recorded messages, one after the other: bytes, begin, end, program id."""
    table, flexible = Decoder().table, Decoder().flexible
    out, begin, end, program = bytearray(), [], [], []
    for name in FRAMES_OF:
        for one in wire.requests(CAPTURES / f"{name}.pcap", material(name).ports):
            for side, frame in ((0, one.frame), (1, one.response)):
                if frame is None or not 0 <= one.version < table.shape[1]:
                    continue
                tags = one.version >= flexible[one.key, side] and not (side == 1 and one.key == 18)
                if side == 0:
                    (size,) = struct.unpack_from(">h", frame.body, 8)
                    at = 10 + max(size, 0) + tags
                else:
                    at = 4 + tags
                begin.append(len(out))
                out += frame.body[at:]
                end.append(len(out))
                program.append(table[one.key, one.version, side])
    return np.frombuffer(bytes(out), np.uint8), np.array(begin), np.array(end), np.array(program, np.int32)


def frames(seconds: float, seed: int = 1) -> Tally:
    """Mutated bodies through the decoder, every field of every message."""
    clean, begin, end, program = corpus()
    table = Decoder().table
    keys = {(int(key), side) for key, _, side in np.argwhere(table >= 0).tolist()}
    decoder = Decoder(dict.fromkeys(keys))
    tally, started = Tally(), time.monotonic()
    while time.monotonic() - started < seconds:
        s, ends = clean.copy(), end.copy()
        mutate_many(s, begin, ends, seed)
        wanted = program if seed % 4 else np.random.default_rng(seed).permutation(program)
        decoded = decoder.decode(s, begin, ends, wanted)
        for message in decoded.messages.values():
            for batch in message.batches:
                batch.validate(full=True)
        tally.inputs += len(program)
        tally.read += int((decoded.status == 0).sum())
        seed += 1
    tally.seconds = time.monotonic() - started
    return tally


def inputs(seed: int) -> Iterator[tuple[int, str, bytes]]:
    """Mutated captures without end: number of the seed, name of the origin, bytes."""
    whole = {name: (CAPTURES / name).read_bytes() for name in SEEDS}
    while True:
        chance = random.Random(seed)
        name = chance.choice(SEEDS)
        yield seed, name, mutate(whole[name], chance)
        seed += 1


def check(data: bytes | Path, keys: Path | None = None) -> bool:
    """Read a hostile capture, as a pipe where it is bytes; whether it was one at all. Raises what kdissect must not
    raise."""
    started, before = time.process_time(), _peak()
    try:
        capture = kdissect.open(data if isinstance(data, Path) else io.BytesIO(data), keylog=keys)
        for table in capture.tables(TABLES).values():
            table.validate(full=True)
    except CaptureError:
        return False
    took = time.process_time() - started
    assert took < LONGEST, f"{took:.1f} s"
    assert _peak() < max(MOST_MEMORY, before + 1), f"{_peak() >> 20} MB"
    return True


def _peak() -> int:
    """The most memory that this process ever had, bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def captures(seconds: float, seed: int = 1, together: int = 1, most: int = 10**9) -> Tally:
    """Mutated captures through everything, for so long and at most so many, `together` of them in one pass: most of the
    time of a small one goes into what a pass does once."""
    tally, started = Tally(), time.monotonic()
    endless = inputs(seed)
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() - started < seconds and tally.inputs < most:
            lot = list(itertools.islice(endless, together))
            if together == 1 or not _fine(lot, Path(folder), tally):
                for number, name, data in lot:
                    try:
                        tally.read += check(data, key_log(name))
                    except Exception:
                        keep(number, name, data)
                        raise
            tally.inputs += len(lot)
    tally.seconds = time.monotonic() - started
    return tally


def _fine(lot: list[tuple[int, str, bytes]], folder: Path, tally: Tally) -> bool:
    """Read a lot in one pass; False when they have to be looked at one by one. Raises, with the lot kept, what happens
    only when they are read together."""
    paths = []
    for number, name, data in lot:
        path = folder / f"{number}-{name}"
        path.write_bytes(data)
        with contextlib.suppress(CaptureError):
            sources.check(path)
            paths.append(path)
    started = time.process_time()
    try:
        whole = lot[0][0] // len(lot) % EVERY == 0
        tables = dict.fromkeys(TABLES) if whole else {"exchanges": WIRE, "connections": None, "problems": None}
        for table in kdissect.open(paths, keylog=KEYS).tables(tables).values():
            table.validate(full=True)
        took = time.process_time() - started
        assert took < LONGEST, f"{took:.1f} s"
        size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        assert size < MOST_MEMORY, f"{size >> 20} MB"
    except CaptureError:
        return False
    except Exception:
        for number, name, data in lot:
            try:
                check(data, key_log(name))
                check(folder / f"{number}-{name}", KEYS)
            except Exception:
                keep(number, name, data)
                raise
        for number, name, data in lot:
            keep(number, name, data)
        raise
    finally:
        for number, name, _ in lot:
            (folder / f"{number}-{name}").unlink()
    tally.read += len(paths)
    return True


def key_log(name: str) -> Path | None:
    """The keys of the recording that an input was made from."""
    keys = CAPTURES / f"{name.split('.')[0]}.keys.log"
    return keys if keys.exists() else None


def keep(number: int, name: str, data: bytes) -> None:
    """Write down what was found."""
    FOUND.mkdir(exist_ok=True)
    (FOUND / f"{number}-{name}").write_bytes(data)


def main() -> None:
    kind, seconds = sys.argv[1], float(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    if kind == "frames":
        tally = frames(seconds, seed)
    elif len(sys.argv) > 4:
        tally = captures(seconds, seed, most=int(sys.argv[4]))
    else:
        tally = captures(seconds, seed, TOGETHER)
    print(f"{kind}: {tally.inputs} mutated in {tally.seconds:.0f} s from seed {seed}, {tally.read} of them still read")


if __name__ == "__main__":
    main()
