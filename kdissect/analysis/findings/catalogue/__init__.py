"""Every kind of finding: all its texts, its cause, and what to do.

Finders fill values into these texts and build none of their own. docs/findings.md is made of this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from kdissect.analysis.findings.catalogue import (
    access_texts,
    broker_texts,
    capture_texts,
    consumer_texts,
    delivery_texts,
    error_texts,
    group_texts,
    network_texts,
    producer_texts,
    session_texts,
)
from kdissect.analysis.findings.catalogue.kind import BOTH, BROKER, CLIENT, CONTROLLER, Kind, choose

KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        **broker_texts.KINDS,
        **access_texts.KINDS,
        **network_texts.KINDS,
        **consumer_texts.KINDS,
        **delivery_texts.KINDS,
        **group_texts.KINDS,
        **producer_texts.KINDS,
        **error_texts.KINDS,
        **session_texts.KINDS,
        **capture_texts.KINDS,
    }
)
"""By id."""

__all__ = ["BOTH", "BROKER", "CLIENT", "CONTROLLER", "KINDS", "Kind", "choose"]
