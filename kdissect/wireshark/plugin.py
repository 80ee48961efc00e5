"""The plugin: one Lua file, the schema's tables in front of the walker that reads them.

Rules: Wireshark's Lua API (Proto, ProtoField, TreeItem, heuristics) as Wireshark 4.0 to 4.6 have it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import kdissect
from kdissect.schema import index
from kdissect.wireshark.lua_tables import tables

FILE_NAME = "kdissect.lua"
MARK = "-- kdissect "
"""How the file begins, by which `install` knows its own."""
PARTS = ("fields", "primitives", "batches", "compiler", "connections", "messages", "dissector")
"""Files of `lua/`, in the order in which each uses what those before it define."""

_HERE = Path(__file__).parent / "lua"


@cache
def plugin() -> str:
    """The whole file as text: every API and version of the schema, both directions."""
    head = (
        f"{MARK}{kdissect.__version__}: Kafka to {index.NEWEST_RELEASE}, every API and version. Made by `kdissect "
        f"wireshark install` from schema {index.digest()[:12]}; changes are lost when it is made again.\n"
        "-- It needs no other file: put it into Wireshark's personal Lua plugins (Help, About, Folders),\n"
        "-- or name it to tshark by -X lua_script:FILE.\n"
    )
    return "\n".join([head + tables(index.load())[0], *((_HERE / f"{part}.lua").read_text() for part in PARTS)])
