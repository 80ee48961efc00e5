"""Checks the content of a redacted capture, with a judge of its own."""
