"""Names of addresses that a pcapng capture brings along (draft-ietf-opsawg-pcapng, section 4.5: name resolution)."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Literal

MOST_NAMES = 1 << 20
"""Addresses that are named; more come from no network that one capture shows."""
NAME_LENGTH = 253
"""Characters of a name (RFC 1035, section 2.3.4); what is longer is cut there."""
WIDTHS = {1: 4, 2: 16}
"""Bytes of the address of records for IPv4 and IPv6, by their type."""


def plain_address(text: str) -> str | None:
    """An address as tables have it: IPv4 in IPv6 as IPv4, without a zone. None for what is none."""
    try:
        found = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return str(getattr(found, "ipv4_mapped", None) or found)


def add_name(names: dict[str, str], address: str, name: str) -> None:
    """Call an address so, if it has no name yet."""
    name = name.strip()[:NAME_LENGTH]
    if name and len(names) < MOST_NAMES:
        names.setdefault(address, name)


def names_in_block(body: bytes, big_endian: bool) -> Iterator[tuple[str, str]]:
    """Addresses and their first names in a name resolution block, from its type to its trailing length. A record that
    does not fit ends it."""
    order: Literal["big", "little"] = "big" if big_endian else "little"
    at, end = 8, len(body) - 4
    while end - at >= 4:
        kind, size = (int.from_bytes(body[at + i : at + i + 2], order) for i in (0, 2))
        if kind == 0 or size > end - at - 4:
            return
        value, width = body[at + 4 : at + 4 + size], WIDTHS.get(kind, 0)
        if 0 < width < size:
            address = plain_address(str(ipaddress.ip_address(value[:width])))
            name = value[width:].partition(b"\0")[0].decode(errors="replace")
            if address is not None and name:
                yield address, name
        at += 4 + ((size + 3) & ~3)
