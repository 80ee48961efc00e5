"""The capture that ships inside the package, for `kdissect --demo`; `demo.toml` says how it was made."""

from __future__ import annotations

from pathlib import Path

CAPTURE = Path(__file__).with_name("demo.pcap")
"""kafka-python on a three-node cluster: a producer with every codec, a consumer group, followers' fetch sessions."""
