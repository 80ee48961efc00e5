"""Captures written again: packets chosen (`cut`), and secrets replaced (`redact`)."""
