"""The single place that composes the layers: captures in, tables out."""

from kdissect.engine.capture import Capture, open_capture

__all__ = ["Capture", "open_capture"]
