"""Small rules of the session tracker as kernels: epochs that follow one another, and what a full request would cost."""

from __future__ import annotations

from kdissect.analysis.sessions import session_rules as r
from kdissect.analysis.sessions.session_pools import varint_bytes
from kdissect.arrays.arrow import Scalar
from kdissect.kernels.kernel import part


@part
def named_bytes(
    version: Scalar, topics: Scalar, plain: Scalar, compact: Scalar, counts: Scalar, partitions: Scalar
) -> Scalar:
    """Bytes of the Topics field of a Fetch request: so many topics, bytes of their names, partitions."""
    if version >= r.FIRST_TOPIC_ID_VERSION:
        return varint_bytes(topics + 1) + topics * 17 + counts + partitions * 33
    if version >= r.FIRST_FLEXIBLE_VERSION:
        return varint_bytes(topics + 1) + compact + topics + counts + partitions * 33
    return 4 + plain + topics * 6 + partitions * (28 if version >= 9 else 24)


@part
def next_epoch(epoch: Scalar) -> Scalar:
    """The epoch that the broker expects after this one."""
    return 1 if epoch >= r.LAST_EPOCH else epoch + 1


@part
def compare(epoch: Scalar, expected: Scalar, last: Scalar, wraps: Scalar) -> Scalar:
    """Status of an epoch where another (or the same) was expected."""
    if epoch == expected:
        return r.WRAPPED if epoch == 1 and last > 0 else r.OK
    if wraps == 0 and not (expected == 1 and last > 0):
        return r.GAP if epoch > expected else r.REPEAT
    ahead = (epoch - expected) % r.LAST_EPOCH
    return r.GAP if ahead < r.LAST_EPOCH // 2 else r.REPEAT
