"""Which texts of a capture are addresses of its hosts."""

from __future__ import annotations

import numpy as np

from kdissect.engine.extracts.remaining import hosts_among
from kdissect.net.segment import FLOW


def test_addresses_of_hosts_are_found_among_texts() -> None:
    v4, v6 = (0, 0xFFFF << 32 | 0x0A000001), (0x20010DB8 << 32, 2**64 - 1)
    flows = np.zeros((3, max(FLOW.a_high, FLOW.a_low, FLOW.b_high, FLOW.b_low, FLOW.ports) + 1), np.uint64)
    flows[0, [FLOW.a_high, FLOW.a_low, FLOW.b_high, FLOW.b_low]] = *v4, *v6
    flows[1, [FLOW.a_high, FLOW.a_low, FLOW.b_high, FLOW.b_low]] = *v6, *v4
    hosts = [b"10.0.0.1", b"2001:db8::ffff:ffff:ffff:ffff"]
    others = [
        b"10.0.0.2", b"::ffff:10.0.0.1", b"2001:DB8::ffff:ffff:ffff:ffff", b"10.0.0.01", b"\xff\xfe", b"broker-1", b"",
        b"2001:db9::ffff:ffff:ffff:ffff", b"fe80::1%eth0",
    ]  # fmt: skip
    found = hosts_among([*hosts, *others, b"::"], flows.view(np.int64))
    assert found == {*hosts, b"::"}  # the third flow is all zeros
    assert hosts_among([], flows.view(np.int64)) == frozenset()
