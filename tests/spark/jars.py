"""Jars that tests need beside Spark's own, fetched by Maven with its usual settings.

Spark's own resolver (Ivy) takes a description that Maven has left in ~/.m2 for the jar itself and fails where a jar was
never asked for, so no test leaves it to that.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>any</groupId><artifactId>any</artifactId><version>1</version><packaging>pom</packaging><dependencies>{}</dependencies></project>"""
DEPENDENCY = """<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>
<exclusions>{}</exclusions></dependency>"""
EXCLUSION = "<exclusion><groupId>{}</groupId><artifactId>{}</artifactId></exclusion>"
INSIDE = "io.netty,org.slf4j,org.scala-lang,org.apache.spark"
"""Groups that Spark has itself, in other versions."""


def fetched(place: Path, artifacts: Sequence[str], without: Sequence[str] = (), alone: bool = False) -> Path:
    """A folder with the jars of these artifacts (group:name:version) and, unless `alone`, of all that they need but
    `without` (group:name). Skips the test where there is no Maven, or no repository has them."""
    if shutil.which("mvn") is None:
        pytest.skip("no Maven")
    place.mkdir(parents=True, exist_ok=True)
    exclusions = "".join(EXCLUSION.format(*one.split(":")) for one in without)
    wanted = "".join(DEPENDENCY.format(*one.split(":"), exclusions) for one in artifacts)
    (place / "pom.xml").write_text(POM.format(wanted))
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={place}"]
    command += ["-DincludeScope=runtime", f"-DexcludeGroupIds={INSIDE}", f"-DexcludeTransitive={str(alone).lower()}"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no repository gives {', '.join(artifacts)}: {done.stdout.strip().splitlines()[:1]}")
    return place


def hadoop() -> str:
    """The version of Hadoop that the installed PySpark has."""
    pyspark = pytest.importorskip("pyspark")
    jars = Path(pyspark.__file__).parent / "jars"
    return next(jars.glob("hadoop-client-api-*.jar")).stem.rpartition("-")[2]
