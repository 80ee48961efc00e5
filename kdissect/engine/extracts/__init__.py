"""Extracts of a capture: fewer packets, a copy that may be shown, one exchange explained."""
