"""Fetch sessions (KIP-227) and share sessions (KIP-932)."""
