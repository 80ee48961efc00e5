"""Connections that are idle: what is remembered of them until a packet of theirs comes."""
