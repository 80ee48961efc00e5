"""Stand-ins of modules do what the whole modules do, which are loaded for who asks for more."""

from __future__ import annotations

import inspect
import subprocess
import sys

import click
import pytest

from kdissect.cli.commands import main
from kdissect.cli.substitutes import StandIn, cleaned, stand_ins

PROGRAM = """
import sys
from kdissect.cli.substitutes import stand_ins
names = {one.name for one in stand_ins()}
for name in names:
    sys.modules.pop(name, None)
sys.meta_path[:0] = stand_ins()
import gettext, inspect, platform, random, socket, urllib.parse
from gettext import ngettext
from urllib.parse import quote_from_bytes
from random import randint
assert [gettext.gettext("it"), ngettext("file", "files", 1), ngettext("file", "files", 2)] == ["it", "file", "files"]
assert inspect.cleandoc("a\\n  b") == "a\\nb"
import os, uuid
assert platform.system() == os.uname().sysname
assert all("__file__" not in vars(sys.modules[name]) for name in names)
assert quote_from_bytes(b" ") == "%20" and urllib.parse.quote(" ") == "%20"
assert all(random.getrandbits(10) < 1024 for _ in range(100))
assert randint(3, 3) == 3
assert str(inspect.signature(lambda a, *b: 0)) == "(a, *b)"
assert inspect.isfunction(len) is False
assert inspect.Parameter.empty is inspect.signature(lambda a: 0).parameters["a"].default
assert socket.socket.__module__ == "socket" and hasattr(socket, "AF_INET") and not hasattr(socket, "AF_NONE")
assert platform.python_version() and gettext.NullTranslations().gettext("files") == "files"
assert all("__file__" in vars(sys.modules[name]) for name in names)
from socket import *
assert AF_INET
import dataclasses, logging, ssl, numpy
"""


def test_who_asks_for_more_gets_the_whole() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


def commands(command: click.Command) -> list[click.Command]:
    """A command and all below it."""
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return [command, *(one for other in below for one in commands(other))]


def test_texts_are_cleaned_as_python_does() -> None:
    texts = [one.help or "" for one in commands(main)] + [
        str(one.__doc__) for one in (inspect, click, subprocess, pytest)
    ]
    # Pythons think differently of other white space.
    texts += ["", " ", "\n", "\n\n a\n  b\n \n", "\ta\n\t\tb\n\tc", "a\n   \n  b"]
    for text in texts:
        assert cleaned(text) == inspect.cleandoc(text)


def test_each_stands_for_one_module() -> None:
    for one in stand_ins():
        assert one.find_spec(one.name) is not None
        assert one.find_spec("elsewhere") is None
    with pytest.raises(AttributeError):
        StandIn("socket").get("__path__")
