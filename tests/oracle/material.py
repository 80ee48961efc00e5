"""The committed captures as the oracles need them: each dissected once, with its TOML, log and keys."""

from __future__ import annotations

import inspect
import re
import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import kdissect
from tests.oracle.request_log import Entry, read

CAPTURES = Path(__file__).resolve().parents[2] / "captures"
LOGGED = sorted(path.name.removesuffix(".requests.log.zst") for path in CAPTURES.glob("*.requests.log.zst"))
ENCRYPTED = frozenset({"tls12", "tls13"})
SAMPLED = frozenset({"era_0_8_2", "k4_session_eviction", "k4_share_group", "sasl_logins"})
"""Logged captures that stand for all where not all are tested."""
DIRECTIONS = ("request", "response")

TOGETHER = [name for name in LOGGED if name not in ENCRYPTED | SAMPLED]

API_ALIASES = {"ListClientMetricsResources": "ListConfigResources", "AlterIsr": "AlterPartition"}
"""Names that a release had for an API before its present one."""


@dataclass(slots=True)
class Material:
    """One capture."""

    name: str
    path: Path
    toml: dict[str, Any]
    capture: Any
    log: Path
    _exchanges: list[dict[str, Any]] | None = None
    _messages: dict[tuple[str, str], dict[str, dict[str, Any]]] = field(default_factory=dict)

    @property
    def exchanges(self) -> list[dict[str, Any]]:
        """Rows of `exchanges`."""
        if self._exchanges is None:
            self._exchanges = self.capture.table("exchanges").to_pylist()
        return self._exchanges

    @property
    def entries(self) -> list[Entry]:
        """The request log."""
        return read(self.log)

    @property
    def ports(self) -> frozenset[int]:
        """Ports of its brokers: those that its TOML and its log name."""
        named = {int(port) for port in re.findall(r"port (\d+)", " ".join(self.toml["brokers"]))}
        logged = {e.broker[1] for e in self.entries if e.broker} if self.name in LOGGED else set()
        return frozenset(named | logged)

    def messages(self, api: str, direction: str) -> dict[str, dict[str, Any]]:
        """Rows of `messages` by exchange id, without the three columns that every API has.

        The clean captures that are tested when all are, are read together, once for each type of message: an exchange's
        id does not depend on what else is read.
        """
        if self.name in TOGETHER:
            return together(api, direction)
        if (api, direction) not in self._messages:
            self._messages[api, direction] = _by_exchange(self.capture, api, direction)
        return self._messages[api, direction]


@cache
def together(api: str, direction: str) -> dict[str, dict[str, Any]]:
    """The messages of the captures that are read together and have such messages."""
    them = [material(name) for name in TOGETHER]
    paths = [it.path for it in them if any(r["api"] == api for r in it.exchanges)]
    return _by_exchange(kdissect.open(paths), api, direction)


def _by_exchange(capture: Any, api: str, direction: str) -> dict[str, dict[str, Any]]:
    rows = capture.messages(api, direction).to_pylist()
    return {
        row.pop("exchange_id"): {k: v for k, v in row.items() if k not in ("api_version", "correlation_id")}
        for row in rows
    }


@cache
def material(name: str) -> Material:
    """The capture of that name, opened once in a test run."""
    toml = tomllib.loads((CAPTURES / f"{name}.toml").read_text())
    path = next(p for p in sorted(CAPTURES.glob(f"{name}.pcap*")))
    keys = CAPTURES / f"{name}.keys.log"
    options = {"keylog": keys} if keys.exists() else {}
    if options and "keylog" not in inspect.signature(kdissect.open).parameters:
        pytest.skip("kdissect.open takes no key log yet: encrypted captures stay closed")
    return Material(name, path, toml, kdissect.open(path, **options), CAPTURES / f"{name}.requests.log.zst")
