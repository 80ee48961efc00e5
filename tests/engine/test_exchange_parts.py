"""The parts of a latency, as `show` prints them, and whose time it was: both add up for every exchange."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import kdissect
from kdissect.analysis.ledger.time_ledger import time_ledger
from kdissect.arrays.arrow import times
from kdissect.cli.printing.tree import PARTS
from kdissect.engine.extracts.showing import owners_of
from kdissect.tables.declaration import SCHEMAS
from tests.bench.forms import recordings
from tests.conftest import CAPTURES


def each_by_itself(tables: dict[str, pa.Table]) -> dict[str, float]:
    """Milliseconds of each exchange that its own ledger has: as if every one had a connection of its own."""
    exchanges = tables["exchanges"]
    ids = exchanges["exchange_id"].cast(pa.string())
    alone = exchanges.set_column(exchanges.column_names.index("connection_id"), "connection_id", ids)
    none = SCHEMAS["connections"].empty_table()
    ledger = time_ledger({**tables, "exchanges": alone, "connections": none}, ("connection",))
    spent = pa.table({"id": ledger["subject"], "ms": (times(ledger, "until") - times(ledger, "at")) / 1000})
    found = spent.group_by("id").aggregate([("ms", "sum")])
    return dict(zip(found["id"].to_pylist(), found["ms_sum"].to_pylist(), strict=True))


def check(name: str) -> int:
    """Holds all exchanges of a capture against their latency; how many they are."""
    tables = dict(kdissect.open(CAPTURES / name).tables({"exchanges": None, "fetches": None}))
    exchanges = tables["exchanges"]
    latency = exchanges["latency_ms"].to_numpy()
    parts = sum(np.nan_to_num(exchanges[column].to_numpy()) for column in PARTS.values())
    known = ~np.isnan(latency) & ~np.isnan(exchanges["broker_ms"].to_numpy())
    assert parts[known] == pytest.approx(latency[known], abs=1e-6)
    alone = each_by_itself(tables)
    ids = exchanges["exchange_id"].cast(pa.string()).to_pylist()
    had = np.array([alone.get(one, 0.0) for one in ids])
    assert had[known] == pytest.approx(latency[known], abs=0.003)
    for at in np.flatnonzero(known)[:: max(1, int(known.sum()) // 5)].tolist():
        assert sum(owners_of(ids[at], tables).values()) == pytest.approx(had[at], abs=1e-6)
    return int(known.sum())


@pytest.mark.parametrize("name", ["base.pcap", "stories/quotas.pcap.zst", "rules/loss.pcap.zst"])
def test_parts_and_owners_add_up_to_the_latency(name: str) -> None:
    assert check(name) > 100


@pytest.mark.exhaustive
def test_parts_and_owners_add_up_in_all_recordings() -> None:
    names = [path.relative_to(CAPTURES).as_posix() for path in (*recordings(), *sorted(CAPTURES.glob("rules/*.pcap*")))]
    assert sum(check(name) for name in names) > 80_000
