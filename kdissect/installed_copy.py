"""How this copy of kdissect was installed, so that a message can say how to add what it needs.

Sources: PEP 610 (`direct_url.json`: a wheel's file, a folder, editable or not) and the file INSTALLER of PEP 627. A
container image names the extras that it was built with in `KDISSECT_IMAGE_EXTRAS`.
"""

from __future__ import annotations

import json
import os
import shlex
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from urllib.parse import unquote, urlsplit

PACKAGE = Path(__file__).parent
IMAGE_EXTRAS = "KDISSECT_IMAGE_EXTRAS"
"""Environment variable of a container image: the extras that it has, with commas between."""


def install_command(extra: str) -> str:
    """The command that adds an extra to this copy, for a shell."""
    image = os.environ.get(IMAGE_EXTRAS)
    if image is not None:
        extras = ",".join(dict.fromkeys([*filter(None, image.split(",")), extra]))
        return f"docker build --build-arg EXTRAS={extras} -t kdissect ."
    try:
        found = Distribution.from_name("kdissect")
    except PackageNotFoundError:
        return _install("pip install -e", str(PACKAGE.parent), extra)  # a checkout on the module path
    pip = "uv pip install" if (found.read_text("INSTALLER") or "").strip() == "uv" else "pip install"
    direct = json.loads(found.read_text("direct_url.json") or "{}")
    url = urlsplit(direct.get("url", ""))
    if not direct:
        return _install(pip, "kdissect", extra, f"=={found.version}")
    if url.scheme != "file":
        return f"{pip} {shlex.quote(f'kdissect[{extra}] @ ' + direct['url'])}"
    editable = direct.get("dir_info", {}).get("editable", False)
    return _install(f"{pip} -e" if editable else pip, unquote(url.path), extra)


def _install(command: str, place: str, extra: str, version: str = "") -> str:
    return f"{command} {shlex.quote(f'{place}[{extra}]{version}')}"
