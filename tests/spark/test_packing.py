from __future__ import annotations

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from kdissect.capture import open_captures
from kdissect.net.scanner import Scanner
from kdissect.net.segment import FLOW_COLUMNS, SEGMENT, SEGMENT_COLUMNS
from kdissect.spark.cells.segment_cells import pack, unpack
from kdissect.spark.stages.flow_numbers import Flows

anything = st.integers(-(2**63), 2**63 - 1)


@given(st.integers(0, 20).flatmap(lambda n: arrays.arrays(np.int64, (n, SEGMENT_COLUMNS), elements=anything)))
def test_any_rows_come_back(rows: np.ndarray) -> None:
    rows[:, SEGMENT.flow] %= 6
    flows = np.arange(3 * FLOW_COLUMNS, dtype=np.int64).reshape(3, FLOW_COLUMNS) - 7
    got, found = unpack(pack(rows.T, flows))
    assert (got == rows).all()
    assert (found == flows).all()


def test_packets_of_a_capture_take_few_bytes(captures: Path) -> None:
    (capture,) = open_captures(captures / "k4_mtu1500.pcap")
    scanner = Scanner(capture)
    rows = np.concatenate([scanner.scan(block).copy() for block in capture.blocks(capture.window())])
    packed = pack(rows.T, scanner.flows)
    assert (unpack(packed)[0] == rows).all()
    assert len(packed) < 24 * len(rows)


def test_flows_have_one_number_each() -> None:
    known = Flows()
    rng = np.random.default_rng(1)
    distinct = rng.integers(-(2**63), 2**63 - 1, (500, FLOW_COLUMNS))
    first = known.number(distinct[:100])
    assert first.tolist() == list(range(100))
    picked = rng.integers(0, 500, 3000)
    numbers = np.concatenate([known.number(distinct[part]) for part in np.array_split(picked, 7)])
    assert (known.rows[numbers] == distinct[picked]).all()
    assert len(np.unique(known.rows, axis=0)) == len(known.rows)
