"""Committed lag: the last high watermark before a commit, in one go and block by block."""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa
import pytest

import kdissect
from kdissect.analysis.committed_lag import NO_WATERMARK, CommitTracker
from tests.conftest import ROOT

CAPTURES = ROOT / "captures"
READ = ("exchanges", "fetches", "fetch_partitions", "offset_commits")


def tables_of(name: str) -> dict[str, pa.Table]:
    return dict(kdissect.open(CAPTURES / f"{name}.pcap").tables(READ))


@pytest.mark.parametrize("name", ["base", "k4_java_classic", "k4_transactions"])
def test_it_is_the_high_watermark_that_was_told_last(name: str) -> None:
    """The rule row by row, in plain Python."""
    tables = tables_of(name)
    answered = {row["exchange_id"]: row["response_first_at"] for row in tables["fetches"].to_pylist()}
    told: dict[tuple[str, int], list[tuple[datetime, int]]] = {}
    for row in tables["fetch_partitions"].to_pylist():
        at = answered[row["exchange_id"]]
        if (
            row["high_watermark"] is not None
            and row["high_watermark"] >= 0
            and at is not None
            and not row["error_code"]
        ):
            told.setdefault((row["topic"], row["partition"]), []).append((at, row["high_watermark"]))
    filled = 0
    for row in tables["offset_commits"].to_pylist():
        before = [one for one in told.get((row["topic"], row["partition"]), ()) if one[0] <= row["at"]]
        high = max(before)[1] if before else None
        assert row["high_watermark"] == high
        assert row["lag"] == (None if high is None or row["offset"] is None else max(0, high - row["offset"]))
        filled += high is not None
    assert filled


def test_block_by_block_it_is_the_same() -> None:
    tables = tables_of("base")
    whole = tables["offset_commits"].sort_by([("exchange_id", "ascending"), ("partition", "ascending")])
    instants = sorted(tables["fetches"]["response_first_at"].cast(pa.int64()).drop_null().to_pylist())
    marks = [instants[len(instants) * part // 5] for part in range(1, 5)]
    times = {row["exchange_id"]: row["response_first_at"] for row in tables["fetches"].to_pylist()}
    micro = {key: None if at is None else round(at.timestamp() * 1e6) for key, at in times.items()}
    tracker, done = CommitTracker(), []
    bare = tables["offset_commits"].drop_columns(["high_watermark", "lag"])
    for before, mark in zip([-1, *marks], [*marks, NO_WATERMARK], strict=True):
        mine = {key for key, at in micro.items() if (before == -1 if at is None else before <= at < mark)}
        block = {"exchanges": tables["exchanges"]}
        for name in ("fetches", "fetch_partitions"):
            flags = [one in mine for one in tables[name]["exchange_id"].to_pylist()]
            block[name] = tables[name].filter(pa.array(flags))
        block["offset_commits"] = bare if before == -1 else bare.slice(0, 0)
        done.append(tracker.feed(block, mark))
    assert sum(part.num_rows > 0 for part in done) > 1
    found = pa.concat_tables(done).select(whole.column_names)
    assert found.sort_by([("exchange_id", "ascending"), ("partition", "ascending")]).equals(whole)
