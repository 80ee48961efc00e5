"""Traffic as it comes: counters over the last seconds, findings, metrics; a capture without an end, in flat memory.

`Watch` reads a source and keeps a `Figures` up to date; a screen, lines for scripts and a metrics endpoint show it.
"""
