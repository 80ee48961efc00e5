"""Segments to per-direction byte streams with arrival times; bytes that are missing are events."""
