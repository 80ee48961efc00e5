"""A kind of finding as the catalogue has it."""

from collections.abc import Mapping
from typing import NamedTuple

CLIENT, BROKER, BOTH, CONTROLLER = "client", "broker", "both", "controller"
"""Where a further capture would settle a cause: at the client's host, the broker's, both at once, or a controller's."""

SENT_AGAIN = ("batches_sent_again", "batches_written_twice")
"""Kinds that follow where connections end: what was open on them is sent again."""

NOTHING_MISSING = (
    " Nothing is said where requests may be missing. A connection of the client that was open then lacks bytes, or a "
    "broker answered a request that was not captured. Nothing is said either of a standstill: no client and no "
    "broker sent anything, though answers were due."
)
"""The end of rules about clients that sent nothing."""

Texts = str | Mapping[str, str]
"""A template (`template.py` has its rules), or several under the names of the cases that a finder tells apart."""


class Kind(NamedTuple):
    """A kind of finding."""

    cause: str
    """client, network, broker, follower, settings, security, capture, unknown."""
    rule: str
    """When it is reported."""
    headline: Texts
    """A few words without a full stop: subject, verb, how much or how long."""
    sentence: Texts
    needs: str
    """The tables and columns that its numbers come from."""
    example: str
    """A capture of the repository in which it is reported, below `captures/` and without its ending."""
    advice: Texts | None = None
    """What to look at or change, one sentence."""
    cannot_tell: str | None = None
    parts: Mapping[str, str] = {}
    """Templates for the items of lists, by name."""
    other_causes: tuple[str, ...] = ()
    """Causes that the finder measures instead of `cause` where it can."""
    starts: bool = False
    """It sets other things off."""
    heads: tuple[str, ...] = ()
    """Kinds that follow from it whatever they are about, where they begin while it lasts or shortly after."""
    settled_at: str | None = None
    """Its cause is likely, not sure: where a capture would settle it. None where the evidence proves the cause."""


def choose(texts: Texts, case: str | None) -> str:
    """The template of a case. Raises KeyError for a case that the catalogue does not have."""
    return texts if isinstance(texts, str) else texts[case or ""]
