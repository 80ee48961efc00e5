"""Vega, Vega-Lite and Vega-Embed as one script, which draws the charts of a page.

vl-convert makes it with V8, which reserves 64 GB of addresses and takes two seconds. So a wheel brings it made
(`hatch_build.py`); in a checkout it is made each time. `python -m kdissect.report.charts_library FILE` makes it.
"""

from __future__ import annotations

import resource
import sys
import zlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kdissect.problems import UsageError

PATH = Path(__file__).with_name("assets") / "charts.js.z"
"""The script, compressed (zlib, RFC 1950), in an installed package."""
RESERVED = 70 << 30
"""Bytes of addresses that V8 reserves when it starts; it ends the process where it gets fewer."""


def is_available() -> bool:
    """Whether the script is there, or what makes it. Raises UsageError where this process may not reserve what V8
    needs to make it."""
    if PATH.exists():
        return True
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    if 0 <= most < RESERVED:  # no limit is -1
        raise UsageError(
            "this process may not reserve the 64 GB of addresses in which the charts' library is made; "
            "where kdissect is installed, and no checkout, it comes made"
        )
    return find_spec("vl_convert") is not None


@cache
def charts_library() -> str:
    """The script."""
    return zlib.decompress(PATH.read_bytes()).decode() if PATH.exists() else _make_script()


def _make_script() -> str:
    import vl_convert

    make: Any = vl_convert.javascript_bundle  # whose types demand what it does not
    bundle: str = make()
    return bundle.replace("\r\n", "\n")  # as it stands in the page when its hash is taken


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(zlib.compress(_make_script().encode(), 9))
