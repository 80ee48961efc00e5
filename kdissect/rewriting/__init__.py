"""Captures written anew: packets chosen (`cut`), and what must not be shown replaced (`redact`)."""
