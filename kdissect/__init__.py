"""kdissect turns packet captures of Apache Kafka traffic into tables.

    import kdissect
    capture = kdissect.open("a.pcap")
    capture.pandas("exchanges")

Nothing heavy is loaded before it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kdissect.problems import (
    CaptureError,
    CaptureNotFound,
    CaptureUnreadable,
    KdissectError,
    NotACapture,
    UsageError,
)

if TYPE_CHECKING:
    from kdissect.engine import Capture
    from kdissect.engine import open_capture as open
    from kdissect.schema.explain import decode, explain

__version__ = "0.2.0"

__all__ = [
    "Capture",
    "CaptureError",
    "CaptureNotFound",
    "CaptureUnreadable",
    "KdissectError",
    "NotACapture",
    "UsageError",
    "__version__",
    "decode",
    "explain",
    "open",
]

_LAZY = {
    "Capture": ("kdissect.engine", "Capture"),
    "open": ("kdissect.engine", "open_capture"),
    "decode": ("kdissect.schema.explain", "decode"),
    "explain": ("kdissect.schema.explain", "explain"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'kdissect' has no attribute {name!r}")
    import importlib

    module, attribute = _LAZY[name]
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value
