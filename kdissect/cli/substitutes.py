"""Modules of the standard library that others import, and of which this process asks little or nothing.

numpy, pyarrow, click and rich import them for functions that are not called here, which takes a tenth of the time of a
small capture. A stand-in has what is called while they are imported; who asks it for anything else gets it from the
whole module, which is loaded then and takes its place.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast


class StandIn:
    """A module in place of the one of this name, with these functions."""

    def __init__(self, name: str, **known: Callable[..., Any]) -> None:
        self.name, self.known = name, known
        self._module: ModuleType | None = None
        self._whole: ModuleType | None = None

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """The module, to be loaded by this object."""
        return ModuleSpec(name, cast("Any", self)) if name == self.name else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As always."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """What is known, and the whole for everything else."""
        self._module = module
        vars(module).update(self.known, __getattr__=self.get)

    def get(self, name: str) -> Any:
        """What the whole module has by this name."""
        if name.startswith("__") and name != "__all__":
            raise AttributeError(name)
        if self._whole is None:
            if self in sys.meta_path:
                sys.meta_path.remove(cast("Any", self))
            if sys.modules.get(self.name) is self._module:
                sys.modules.pop(self.name, None)
            self._whole = importlib.import_module(self.name)
        return getattr(self._whole, name)

    def through(self, name: str) -> Callable[..., Any]:
        """A function of the whole module, which is loaded when it is called."""
        return lambda *given, **named: self.get(name)(*given, **named)


def cleaned(text: str) -> str:
    """A docstring without what its lines are indented by, and without empty lines around it: `inspect.cleandoc`."""
    first, *others = text.expandtabs().split("\n")
    margin = min((len(line) - len(line.lstrip()) for line in others if line.strip(" ")), default=0)
    lines = [first.lstrip(), *(line[margin:] for line in others)]
    while lines and not lines[-1]:
        lines.pop()
    while lines and not lines[0]:
        lines.pop(0)
    return "\n".join(lines)


def plural(one: str, more: str, count: int) -> str:
    """English has two forms."""
    return one if count == 1 else more


def random_bits(count: int) -> int:
    """So many."""
    return int.from_bytes(os.urandom(-(-count // 8)), "big") >> -count % 8


def stand_ins() -> list[StandIn]:
    """For inspect (with ast, dis and tokenize), which shows signatures to people; socket (with selectors), of which
    pyarrow asks for a free port in its tests; platform, of which uuid asks for the system's name; random, for rich's
    links, which we do not write; urllib.parse, for paths as URLs; gettext, whom click asks for its words in another
    language: it has none, nor have we."""
    inspect, random, parse = StandIn("inspect"), StandIn("random"), StandIn("urllib.parse")

    def signature(of: Any, **options: Any) -> Any:
        if getattr(of, "__module__", "").startswith("numpy."):
            return None  # shown by `help` alone
        return inspect.get("signature")(of, **options)

    inspect.known = {"cleandoc": cleaned, "signature": signature}
    random.known = {"getrandbits": random_bits, "randint": random.through("randint")}
    parse.known = {"quote_from_bytes": parse.through("quote_from_bytes")}
    found = [inspect, random, parse, StandIn("socket"), StandIn("gettext", gettext=str, ngettext=plural)]
    if hasattr(os, "uname"):
        found.append(StandIn("platform", system=lambda: os.uname().sysname))
    return found
