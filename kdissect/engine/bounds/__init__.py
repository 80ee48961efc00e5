"""Answers of large captures within a budget of memory."""
