"""Captures that were given together are looked at for connections that several of them saw."""
