"""The parts of a latency, as `show` prints them, and whose time it was: both add up for every exchange."""

from __future__ import annotations

import numpy as np
import pytest

import kdissect
from kdissect.cli.printing.tree import PARTS
from kdissect.engine.extracts.showing import owners_of
from tests.conftest import CAPTURES


@pytest.mark.parametrize("name", ["base.pcap", "stories/quotas.pcap.zst"])
def test_parts_and_owners_add_up_to_the_latency(name: str) -> None:
    tables = kdissect.open(CAPTURES / name).tables({"exchanges": None, "fetches": None})
    exchanges = tables["exchanges"]
    latency = exchanges["latency_ms"].to_numpy()
    parts = sum(np.nan_to_num(exchanges[column].to_numpy()) for column in PARTS.values())
    known = ~np.isnan(latency) & ~np.isnan(exchanges["broker_ms"].to_numpy())
    assert known.sum() > 100
    assert parts[known] == pytest.approx(latency[known], abs=1e-6)
    for at in np.flatnonzero(known)[:: max(1, int(known.sum()) // 20)].tolist():
        owners = owners_of(exchanges["exchange_id"][at].as_py(), tables)
        assert sum(owners.values()) == pytest.approx(latency[at], abs=0.003), owners
