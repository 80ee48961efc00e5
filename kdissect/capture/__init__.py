"""Capture files, pipes and rotated sets, read as blocks of packets. The only layer that opens files."""

from kdissect.capture.block import Block
from kdissect.capture.captureset import CaptureSet, Member
from kdissect.capture.condition import CaptureProblem, FileReport, Interface, link_name
from kdissect.capture.sources import open_captures
from kdissect.capture.window import EXTRA, Window

__all__ = [
    "EXTRA",
    "Block",
    "CaptureProblem",
    "CaptureSet",
    "FileReport",
    "Interface",
    "Member",
    "Window",
    "link_name",
    "open_captures",
]
