"""Paired frames to decoded exchanges: which layout, what became of each, messages inside messages."""
