"""Brokers of a live view: their connections, and whether they answer, stand still or are gone."""
