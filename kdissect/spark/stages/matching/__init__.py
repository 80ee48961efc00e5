"""Captures that saw the same connections are matched in a shuffle: the steps, and the index rows between them."""
