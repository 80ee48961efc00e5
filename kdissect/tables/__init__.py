"""Columns to Arrow tables. Each table is declared once, in `declaration`, with a doc per column."""
