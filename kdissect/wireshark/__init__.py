"""Wireshark: a dissector in Lua made from the schema, and captures with our verdicts as comments on their packets."""
