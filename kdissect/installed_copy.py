"""How this copy of kdissect was installed, so that a message can say how to add what it needs.

Sources: PEP 610 (`direct_url.json`: a wheel's file, a folder, editable or not) and the file INSTALLER of PEP 627. A
container image names the extras and the system's packages that it was built with in `KDISSECT_IMAGE_EXTRAS` and
`KDISSECT_IMAGE_PACKAGES`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from urllib.parse import unquote, urlsplit

PACKAGE = Path(__file__).parent
IMAGE_EXTRAS = "KDISSECT_IMAGE_EXTRAS"
"""Environment variable of a container image: the extras that it has, with commas between."""
IMAGE_PACKAGES = "KDISSECT_IMAGE_PACKAGES"
"""Environment variable of a container image: the system's packages that were added to it, with spaces between."""
SYSTEM_PACKAGES = {"spark": "default-jre-headless", "crosscheck": "tshark"}
"""What an extra needs of the system, by the names that Debian has; the image's base is Debian."""
CONDITIONAL = re.compile(r"(?P<requirement>.*?)\s*;\s*extra == ['\"](?P<extra>[^'\"]+)['\"]")
"""A requirement of an extra in a distribution's metadata."""
OWN_EXTRAS = re.compile(r"kdissect\[(?P<extras>[^]]*)\]")
"""An extra that consists of others."""


def install_command(extra: str) -> str:
    """The command that adds an extra to this copy, for a shell.

    It installs into the environment that runs, also where that is not activated. A copy that came from a file or a
    folder is named by its place. If the metadata names no place, or nothing is there any more, the command names the
    packages of the extra and not kdissect. An index may have no package of this name, or somebody else's.
    """
    image = os.environ.get(IMAGE_EXTRAS)
    if image is not None:
        return _image_build(extra, image)
    try:
        found = Distribution.from_name("kdissect")
    except PackageNotFoundError:
        return f"{_pip()} -e {shlex.quote(f'{PACKAGE.parent}[{extra}]')}"  # a checkout on the module path
    pip = _uv() if (found.read_text("INSTALLER") or "").strip() == "uv" else _pip()
    direct = json.loads(found.read_text("direct_url.json") or "{}")
    url = urlsplit(direct.get("url", ""))
    place = unquote(url.path)
    if not direct or (url.scheme == "file" and not Path(place).exists()):
        return " ".join([pip, *map(shlex.quote, _requirements(found.requires or [], extra))])
    if url.scheme != "file":
        return f"{pip} {shlex.quote(f'kdissect[{extra}] @ ' + direct['url'])}"
    option = " -e" if direct.get("dir_info", {}).get("editable", False) else ""
    return f"{pip}{option} {shlex.quote(f'{place}[{extra}]')}"


def _image_build(extra: str, extras: str) -> str:
    """Builds the image again with one extra more, and with what that needs of the system."""
    names = ",".join(dict.fromkeys([*filter(None, extras.split(",")), extra]))
    needed = [*os.environ.get(IMAGE_PACKAGES, "").split(), *SYSTEM_PACKAGES.get(extra, "").split()]
    packages = shlex.quote(" ".join(dict.fromkeys(needed)))
    arguments = [f"EXTRAS={names}", *([f"PACKAGES={packages}"] if needed else [])]
    return " ".join(["docker build", *(f"--build-arg {one}" for one in arguments), "-t kdissect ."])


def _pip() -> str:
    """pip of this environment: by its name if the shell finds this one."""
    import shutil  # few commands need it

    binaries = Path(sys.prefix) / "bin"
    found = shutil.which("pip")
    if found is not None and Path(found).parent == binaries:
        return "pip install"
    return f"{shlex.quote(str(binaries / 'python3'))} -m pip install"


def _uv() -> str:
    """uv for this environment: it finds an activated one by itself."""
    if os.environ.get("VIRTUAL_ENV") == sys.prefix:
        return "uv pip install"
    return f"uv pip install --python {shlex.quote(sys.prefix)}"


def _requirements(lines: list[str], extra: str) -> Iterator[str]:
    """The requirements of an extra in a distribution's metadata; of extras that it names, theirs."""
    for line in lines:
        found = CONDITIONAL.fullmatch(line)
        if found is None or found["extra"] != extra:
            continue
        own = OWN_EXTRAS.fullmatch(found["requirement"])
        if own is None:
            yield found["requirement"]
            continue
        for name in own["extras"].split(","):
            yield from _requirements(lines, name.strip())
