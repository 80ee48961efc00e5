"""The state of the analysis between two blocks, as values that `kdissect.arrays.typed_values` writes and reads."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from kdissect.analysis.committed_lag import CarriedCommits
from kdissect.analysis.holds.exchange_holds import HeldExchanges
from kdissect.analysis.holds.fetch_holds import CarriedHolds
from kdissect.analysis.holds.replication import CarriedReplication
from kdissect.analysis.sessions.tracker import CarriedSessions
from kdissect.arrays.rows import Rows


class CarriedStage(NamedTuple):
    """The state of a `Stage`."""

    empty: dict[str, Rows]
    """No rows, with the columns of those fed last, by table."""
    sessions: CarriedSessions | None
    holds: CarriedHolds | None
    replication: CarriedReplication | None
    commits: CarriedCommits | None
    exchanges: list[HeldExchanges]
    throttled: Rows
    uses: list[pa.Table]


class CarriedStages(NamedTuple):
    """The state of `Stages`."""

    stages: dict[str | None, CarriedStage]
    """By cluster."""
