"""Exchanges whose messages waited until segments of them were sent again: the network had lost some."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.findings.limits import Limits
from kdissect.arrays.arrow import reals
from kdissect.arrays.from_numpy import arrow_array

RESENT = "resent"
"""The `network_kind` of exchanges that waited until something was sent again. Where nothing tells whether the copy of
the request was needed, `request_resent_ms` is null: the segment was lost, or its acknowledgement was."""
FILTER = "(request_resent_ms > 0 or response_resent_ms > 0 or (request_resent_ms is null and network_kind = 'resent'))"
"""Those exchanges, as a person filters them."""


def resent(exchanges: pa.Table, limits: Limits) -> Any:
    """Exchanges with messages that waited until segments were sent again."""
    return arrow_array(resent_ms(exchanges) > 0)


def resent_ms(exchanges: pa.Table) -> npt.NDArray[np.float64]:
    """For how long messages of exchanges waited until segments were sent again, milliseconds; 0 where none did.

    Where nothing tells whether the request or an acknowledgement was lost, it is what the network took of the exchange.
    """
    request = reals(exchanges, "request_resent_ms")
    kind = pc.equal(exchanges["network_kind"].cast(pa.string()), RESENT)
    unknown = np.isnan(request) & pc.fill_null(kind, False).to_numpy()
    waited = np.where(unknown, reals(exchanges, "network_ms"), request)
    return np.nan_to_num(waited) + np.nan_to_num(reals(exchanges, "response_resent_ms"))
