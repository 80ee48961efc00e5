"""Packets that the kernel does not know, taken apart by scapy, which is imported when the first one comes.

scapy is asked only where the innermost IP header with TCP (or a fragment) stands; the kernel reads on from there.
"""

from __future__ import annotations

import importlib
from typing import Any

MAX_RARE = 20_000
"""Packets given to scapy in one capture: at 0.2-1 ms each that is up to 20 s, the longest we let it take. The rest is
counted."""


class Rare:
    """Finds IP headers through scapy. `missing`: why it cannot (not installed), else ''."""

    def __init__(self) -> None:
        self.missing = ""
        self._links: Any = None
        self._ip: tuple[type, ...] = ()

    def _load(self) -> None:
        import logging

        try:
            logging.getLogger("scapy.runtime").setLevel(logging.ERROR)
            importlib.import_module("scapy.layers.all")
            self._links = importlib.import_module("scapy.config").conf.l2types.num2layer
            inet = importlib.import_module("scapy.layers.inet")
            inet6 = importlib.import_module("scapy.layers.inet6")
            self._ip = (inet.IP, inet6.IPv6)
        except (
            Exception
        ) as error:  # scapy looks at the machine's network when it loads; whatever fails there, we go on without
            self.missing = f"scapy cannot be loaded ({error})"
            self._links = {}

    def ip_header(self, packet: bytes, link_type: int) -> bytes | None:
        """The innermost IP packet (header to end, as captured) in a packet of this link type; None where scapy sees
        none."""
        if self._links is None:
            self._load()
        layer = self._links.get(link_type)
        if layer is None:
            return None
        try:
            parsed: Any = layer(packet)
            found = None
            while parsed is not None and parsed.name != "NoPayload":
                if type(parsed) in self._ip:
                    found = bytes(parsed.original)
                parsed = parsed.payload
        except Exception:  # hostile bytes bring out errors of every kind
            return None
        return found
