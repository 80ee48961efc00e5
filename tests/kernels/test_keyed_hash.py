"""Tables of addresses and flows: a sender who knows the code cannot choose keys that meet in one place.

The flows and addresses here all meet in one slot of a hash that multiplies by known numbers (`ODD`), so that each
search walks through all of them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kdissect.kernels.keyed_hash import new_secret
from kdissect.kernels.structs import rows_of, width
from kdissect.net import packets
from kdissect.net.segment import FLOW, FLOW_COLUMNS
from kdissect.rewriting import hiding_kernels as hiding
from kdissect.spark.stages import flow_numbers
from kdissect.tables import address_texts

COUNT = 1 << 14
LONGEST = 100
"""Slots in use next to one another at a load of a quarter: random keys have some twenty."""
ODD = (0x2545F4914F6CDD1D, 0x9E3779B97F4A7C15)
NUMBERS = np.arange(COUNT, dtype=np.uint64)


def longest_run(table: npt.NDArray[np.int32]) -> int:
    """The most slots in use next to one another: no search is longer."""
    gaps = np.diff(np.flatnonzero(np.concatenate([[True], table < 0, [True]])))
    return int(gaps.max()) - 1


def inverse(odd: int) -> np.uint64:
    return np.uint64(pow(odd, -1, 1 << 64))


def flows() -> npt.NDArray[np.int64]:
    """Of IPv4, with the same ports: first address ^ second address << 1 is the same."""
    rows = np.zeros((COUNT, FLOW_COLUMNS), np.int64)
    rows[:, FLOW.b_low] = packets.MAPPED | 0x0A000000 + np.arange(COUNT)
    rows[:, FLOW.a_low] = packets.MAPPED | 0x01020304 ^ np.arange(COUNT) << 1
    rows[:, FLOW.ports] = 40_000 << 16 | 9092
    return rows


def test_flows() -> None:
    table, state = np.full(4 * COUNT, -1, np.int32), np.zeros(width(packets.Scanning), np.int64)
    packets.scanning_at(state, 0).key[:] = new_secret().tolist()
    packets.rehash(flows(), COUNT, table, state)
    assert np.count_nonzero(table >= 0) == COUNT
    assert longest_run(table) < LONGEST


def test_flows_of_a_partition() -> None:
    table, numbers = np.full(4 * COUNT, -1, np.int32), np.empty(COUNT, np.int64)
    flow_numbers._number(flows(), np.zeros_like(flows()), table, 0, numbers, new_secret())
    assert (numbers == np.arange(COUNT)).all()
    assert longest_run(table) < LONGEST


def test_addresses_with_stand_ins() -> None:
    addresses, state = np.zeros((COUNT, hiding.ADDRESS_COLUMNS), np.int64), np.zeros(hiding.STATE, np.int64)
    rows_of(hiding.Address, addresses)["low"] = ((NUMBERS << np.uint64(48)) * inverse(ODD[0])).view(np.int64)
    table = np.full(4 * COUNT, -1, np.int32)
    state[hiding.KEY :] = new_secret()
    hiding.find_slots(addresses, COUNT, table, state)
    assert longest_run(table) < LONGEST


def test_addresses_of_rows() -> None:
    values = NUMBERS * inverse(ODD[1])
    values ^= values >> np.uint64(32)
    table, codes = np.full(4 * COUNT, -1, np.int32), np.empty(COUNT, np.int32)
    address_texts._number(values.view(np.int64), table, codes, np.empty(COUNT, np.int64), new_secret())
    assert (codes == np.arange(COUNT)).all()
    assert longest_run(table) < LONGEST
