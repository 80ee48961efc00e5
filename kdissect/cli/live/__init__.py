"""The live view on a terminal, and as lines for scripts."""
