"""`--version`: kdissect, what it rests on, and the newest Kafka that it knows."""

from __future__ import annotations

import platform
import shutil
from importlib import metadata

from kdissect.cli.confinement.sandbox import sandbox_name

FOUNDATION = ("numpy", "pyarrow", "pandas", "scapy", "pyspark")


def versions() -> list[str]:
    """Lines of `--version`; nothing is imported to find them out."""
    from kdissect import __version__

    parts = [f"Python {platform.python_version()}"]
    for name in FOUNDATION:
        try:
            parts.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            parts.append(f"no {name}")
    parts.append("tshark found" if shutil.which("tshark") else "no tshark")
    parts.append(sandbox_name())
    return [f"kdissect {__version__}", f"knows Kafka up to {newest_kafka()}", ", ".join(parts)]


def newest_kafka() -> str:
    """The newest Kafka release whose messages are known."""
    from kdissect.schema.index import NEWEST_RELEASE

    return str(NEWEST_RELEASE)
