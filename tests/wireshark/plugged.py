"""tshark with the plugin: every message that it shows, with every field."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kdissect.wireshark.plugin import FILE_NAME, plugin
from tests.oracle.dissector import tshark

UNPRIVILEGED = "nobody"
"""Whom tshark runs as where the tests run as root: Wireshark 4.4 and newer load no user's scripts as root."""
PROTOCOL = "kdissect"


@dataclass(frozen=True, slots=True)
class Message:
    """One message in the frame that completed it. `fields`: values as tshark shows them, by display filter name."""

    frame: int
    fields: dict[str, list[str]]

    def number(self, name: str) -> int | None:
        """The first value of a field as a number; None where it is not there."""
        found = self.fields.get(f"{PROTOCOL}.{name}")
        return int(found[0]) if found else None

    @property
    def response(self) -> bool:
        return self.fields["kdissect.response"][0] in ("1", "True")


def written(folder: Path) -> Path:
    """The plugin in a folder, readable for anyone."""
    path = folder / FILE_NAME
    path.write_text(plugin())
    return path


def command(lua: Path, capture: Path, *options: str) -> list[str]:
    """A tshark command that loads the plugin; a program of the environment may stand in for tshark."""
    program = os.environ.get("KDISSECT_TSHARK", "").split() or [tshark()]
    beside = lua.parent / capture.name
    if not beside.exists():
        shutil.copyfile(capture, beside)  # where anyone can read it
    return [*program, "-X", f"lua_script:{lua}", "-r", str(beside), *options]


def run(words: list[str]) -> subprocess.CompletedProcess[bytes]:
    """Run a command as an ordinary user, with a home of nobody's."""
    if os.getuid() != 0:
        return subprocess.run(words, capture_output=True, timeout=280)
    user = pwd.getpwnam(UNPRIVILEGED)
    environment = {**os.environ, "HOME": "/nonexistent", "XDG_CONFIG_HOME": "/nonexistent"}
    return subprocess.run(
        words, capture_output=True, timeout=280, user=user.pw_uid, group=user.pw_gid, extra_groups=[], env=environment
    )


def lua_errors(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    """Lines that tell of errors inside the plugin."""
    lines = (done.stdout + done.stderr).decode("utf-8", "replace").splitlines()
    return [line for line in lines if "lua error" in line.lower() or ".lua:" in line]


def messages(lua: Path, capture: Path, *options: str) -> list[Message]:
    """Every message of a capture, read in two passes."""
    done = run(command(lua, capture, "-2", "-T", "pdml", *options))
    assert done.returncode == 0, done.stderr[-2000:]
    assert not lua_errors(done), lua_errors(done)[:3]
    return [Message(frame, fields) for frame, fields in _parsed(done.stdout)]


def _parsed(pdml: bytes) -> Iterator[tuple[int, dict[str, list[str]]]]:
    frame = 0
    for packet in ET.fromstring(pdml).iter("packet"):
        for protocol in packet.findall("proto"):
            name = protocol.get("name")
            if name == "geninfo":
                frame = next(int(f.get("show", "")) for f in protocol if f.get("name") == "num")
            if name != PROTOCOL:
                continue
            fields: defaultdict[str, list[str]] = defaultdict(list)
            for item in protocol.iter("field"):
                shown = item.get("name", "")
                if shown.startswith(PROTOCOL + "."):
                    fields[shown].append(item.get("show", ""))
            if "kdissect.response" in fields:
                yield frame, dict(fields)
