"""Subcommands: what each of them asks, reads and prints."""
