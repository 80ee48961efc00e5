"""Builds the recorders' clients in Java: kafka-clients of tests/live, which is the newest release's."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.live import broker


def build_java_client(source: Path, folder: Path) -> list[str]:
    """Compiles a class into `folder`; returns the command that runs it, without arguments. Its file has its name."""
    jars = f"{broker.jars()}/*"
    subprocess.run(["javac", "-cp", jars, "-d", str(folder), str(source)], check=True)
    return [
        "java", "-Xmx300m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=ERROR",
        "-cp", f"{folder}:{jars}", source.stem,
    ]  # fmt: skip
