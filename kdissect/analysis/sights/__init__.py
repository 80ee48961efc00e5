"""Exchanges that several captures saw."""
