"""Commands for Wireshark: its plugin, and captures annotated for it."""
