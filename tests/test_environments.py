"""The wheel in new environments: every Python, the newest and the lowest versions of what it needs, its messages.

Each takes minutes and the package index, so they are marked `exhaustive`:

    pytest -m exhaustive tests/test_environments.py -s

KDISSECT_WHEEL names a wheel that is there already, KDISSECT_PYTHONS interpreters besides those on the PATH and of pyenv
(with colons between). `-s` shows sizes and times, which decide nothing but the size of the base environment.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.conftest import CAPTURES, ROOT

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not (ROOT / "kdissect").exists(), reason="only a checkout makes a wheel"),
]

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSIONS = [found[1] for one in PROJECT["classifiers"] if (found := re.search(r":: (3\.\d+)$", one))]
BASE_MB = 450
"""What the base environment may take, pip included."""
OF_PYTHON = {"setuptools", "pkg_resources", "_distutils_hack"}
"""What Python 3.11 puts into each environment, and later ones do not."""
READ = ["base_tiny", "k4_session_eviction", "tls13", "era_0_8_2", "field_zst", "field_lz4"]
"""Captures that need every library of the base install: codecs, TLS, rare formats."""
USED = ("report", "sql", "top", "notebook", "crosscheck", "otlp")
"""Extras that one environment has together; Spark has one of its own."""


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")

    def run(self, *words: str, cwd: Path | None = None, ok: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program outside of the checkout, with this environment's programs first."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL"))}
        variables["PATH"] = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        done = subprocess.run(
            words, cwd=cwd or self.folder, env=variables, capture_output=True, text=True, timeout=1500
        )
        assert not ok or done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done

    def install(self, *requirements: str) -> None:
        self.run(self.python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *requirements)

    def kdissect(self, *words: str, ok: bool = True) -> subprocess.CompletedProcess[str]:
        return self.run(self.python, "-P", "-m", "kdissect", *words, ok=ok)

    def digests(self) -> list[str]:
        """Every table of some captures, a line each; texts that may be worded anew left out."""
        paths = [str(next(CAPTURES.glob(f"{name}.pcap*"))) for name in READ]
        done = self.run(self.python, str(ROOT / "tests" / "digests.py"), *paths)
        return [line for line in done.stdout.splitlines() if "\tworded\t" not in line]


def new(folder: Path, python: str) -> Environment:
    subprocess.run([python, "-m", "venv", str(folder)], check=True, timeout=300)
    return Environment(folder)


def interpreters() -> dict[str, str]:
    """An interpreter of each Python that kdissect runs on, as far as this machine has them, by version."""
    places = [Path(one) for one in os.environ.get("KDISSECT_PYTHONS", "").split(":") if one]
    places += [Path(found) for version in VERSIONS if (found := shutil.which(f"python{version}"))]
    places += sorted((Path.home() / ".pyenv" / "versions").glob("*/bin/python"))
    found = {"{}.{}".format(*sys.version_info): getattr(sys, "_base_executable", sys.executable)}
    for place in places:
        text = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([str(place), "-c", text], capture_output=True, text=True, timeout=60)
        if done.returncode == 0 and done.stdout.strip() in VERSIONS:
            found.setdefault(done.stdout.strip(), str(place))
    return found


def requirements(*extras: str) -> list[Requirement]:
    """What the package and extras name."""
    lines = list(PROJECT["dependencies"])
    for extra in extras:
        lines += PROJECT["optional-dependencies"][extra]
    return [Requirement(line) for line in lines]


def lowest(named: Sequence[Requirement]) -> list[str]:
    """The lowest versions that requirements allow; of a package that several extras name, the highest of theirs."""
    bounds: dict[str, Version] = {}
    for requirement in named:
        for one in requirement.specifier:
            if one.operator in (">=", "=="):
                version = Version(one.version)
                bounds[requirement.name] = max(version, bounds.get(requirement.name, version))
    return [f"{name}=={version}" for name, version in bounds.items()]


def constrained(environment: Environment, lines: Sequence[str]) -> list[str]:
    """Options of pip that hold it to these versions."""
    path = environment.folder / "constraints.txt"
    path.write_text("\n".join(lines) + "\n")
    return ["-c", str(path)]


def try_surfaces(environment: Environment) -> None:
    """What the extras bring is used once."""
    capture = str(CAPTURES / "base_tiny.pcap")
    page = environment.folder / "report.html"
    environment.kdissect(capture)
    environment.kdissect(capture, "--html", str(page))
    assert page.stat().st_size > 100_000
    done = environment.kdissect("sql", capture, "select count(*) as n from exchanges", "--format", "jsonl")
    rows = json.loads(environment.kdissect(capture, "--table", "exchanges", "--format", "jsonl").stdout.splitlines()[0])
    assert json.loads(done.stdout)["n"] > 1
    assert rows["exchange_id"]
    environment.kdissect("top", capture, "--once", "--no-findings", "--metrics", "127.0.0.1:0")
    environment.kdissect("otlp", capture, "-o", str(environment.folder / "spans.jsonl"))
    environment.kdissect(capture, "--table", "exchanges", "-o", str(environment.folder / "e.parquet"))
    environment.run(
        environment.python, "-P", "-c",
        f"import kdissect; from kdissect import notebook; c = kdissect.open({capture!r});"
        "notebook.heat_map(c.table('exchanges')).save('heat.svg');"
        "print(c.pandas('exchanges').groupby('api')['latency_ms'].describe());"
        "import textual.app, kdissect.cli.live.fullscreen",
    )  # fmt: skip
    if shutil.which("tshark"):
        environment.kdissect("crosscheck", capture)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this system."""
    given = os.environ.get("KDISSECT_WHEEL")
    if given:
        return Path(given).resolve()
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)]
    subprocess.run(command, check=True, timeout=1200)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="session")
def expected(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Digests of the tables as this environment's libraries give them."""
    here = Environment(Path(sys.prefix))
    lines = here.digests()
    assert len(lines) > 50
    return lines


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that is gone afterwards: environments are large."""
    yield tmp_path
    shutil.rmtree(tmp_path, ignore_errors=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_python(version: str, wheel: Path, expected: list[str], folder: Path) -> None:
    """The base install reads captures, and is as small as promised."""
    python = interpreters().get(version)
    if python is None:
        pytest.skip(f"there is no Python {version} here (KDISSECT_PYTHONS names further ones)")
    environment = new(folder / "env", python)
    started = time.monotonic()
    environment.install(str(wheel))
    took = time.monotonic() - started
    assert f"Python {version}" in environment.kdissect("--version").stdout
    assert environment.digests() == expected
    brought = [str(path) for path in environment.folder.glob("lib/*/site-packages/*") if path.name in OF_PYTHON]
    sizes = [int(environment.run("du", "-cm", *places).stdout.splitlines()[-1].split()[0])
             for places in ([str(environment.folder)], brought or ["/dev/null"])]  # fmt: skip
    print(f"\nPython {version}: {sizes[0]} MB, {sizes[1]} of them setuptools; pip install {took:.1f} s")
    assert sizes[0] - sizes[1] <= BASE_MB


def test_install_from_local_wheels(wheel: Path, folder: Path) -> None:
    """How long pip takes where nothing is fetched: printed, for a clock decides nothing."""
    environment = new(folder / "env", interpreters()["{}.{}".format(*sys.version_info)])
    wheels = str(folder / "wheels")
    environment.run(environment.python, "-m", "pip", "download", "-q", "-d", wheels, str(wheel))
    for what, options in (("compiling modules", []), ("without", ["--no-compile"])):
        environment.run(environment.python, "-m", "venv", "--clear", str(environment.folder))
        before = os.times()
        environment.install("--no-index", "--find-links", wheels, *options, str(wheel))
        after = os.times()
        cpu = sum(after[2:4]) - sum(before[2:4])
        print(f"\npip install, {what}: {after.elapsed - before.elapsed:.1f} s, {cpu:.1f} s of CPU")
    environment.kdissect("--version")


@pytest.mark.parametrize("which", ["newest", "lowest"])
def test_versions_of_dependencies(which: str, wheel: Path, expected: list[str], folder: Path) -> None:
    """The newest of each, whatever upper bound stands in pyproject; the lowest of each that it promises."""
    python = interpreters()
    environment = new(folder / "env", python[max(python) if which == "newest" else min(python)])
    named = requirements(*USED)
    if which == "newest":
        environment.install(*{one.name for one in named})
        environment.install("--no-deps", str(wheel))
    else:
        held = constrained(environment, lowest(named))
        environment.install(*held, f"{wheel}[{','.join(USED)}]")
    listed = environment.run(environment.python, "-m", "pip", "list", "--format", "json").stdout
    versions = {canonicalize_name(one["name"]): one["version"] for one in json.loads(listed)}
    print(f"\n{which}:", ", ".join(f"{one.name} {versions[canonicalize_name(one.name)]}" for one in named))
    assert environment.digests() == expected
    try_surfaces(environment)


@pytest.mark.parametrize("which", ["newest", "lowest"])
def test_versions_of_spark(which: str, wheel: Path, folder: Path) -> None:
    if not shutil.which("java"):
        pytest.skip("needs Java")
    python = interpreters()
    environment = new(folder / "env", python[min(python)])
    named = [Requirement(line) for line in PROJECT["optional-dependencies"]["spark"]]
    environment.install(*(lowest(named) if which == "lowest" else [one.name for one in named]), str(wheel))
    capture, out = str(CAPTURES / "base_tiny.pcap"), folder / "tables"
    environment.kdissect("spark", capture, "-o", str(out), "--tables", "exchanges", "--master", "local[1]")
    count = "import sys, pyarrow.parquet as p; print(p.read_table(sys.argv[1]).num_rows)"
    rows = environment.run(environment.python, "-c", count, str(out / "exchanges")).stdout
    lines = environment.kdissect(capture, "--table", "exchanges", "--format", "jsonl").stdout.splitlines()
    assert int(rows) == len(lines) > 1


ASKING = {
    "report": ["{capture}", "--html", "page.html"],
    "sql": ["sql", "{capture}", "select 1 as one"],
    "top": ["top", "{capture}", "--once", "--no-findings", "--metrics", "127.0.0.1:0"],
    "crosscheck": ["crosscheck", "{capture}"],
    "otlp": ["otlp", "{capture}", "-o", "spans.jsonl"],
    "notebook": [],
    "spark": ["spark", "{capture}", "-o", "spark_tables", "--tables", "exchanges", "--master", "local[1]"],
}
"""Arguments of a command that needs the extra; of none, Python imports what does."""
NEEDED = {"crosscheck": "tshark", "spark": "java"}
"""Programs without which an extra is of no use."""


@pytest.mark.parametrize("way", ["wheel", "no place", "checkout"])
def test_messages_are_run_as_printed(way: str, wheel: Path, folder: Path) -> None:
    """A command that misses an extra prints how to add it; run as it stands, it does, and the command works."""
    environment = new(folder / "env", interpreters()["{}.{}".format(*sys.version_info)])
    if way == "no place":  # as from an index or a folder of wheels, by name
        environment.install(*map(str, requirements()))
        environment.install("--no-deps", "--no-index", "--find-links", str(wheel.parent), PROJECT["name"])
    elif way == "wheel":
        environment.install(str(wheel))
    else:
        environment.install("-e", str(ROOT))
    for extra, words in ASKING.items():
        if extra == "spark" and way != "wheel":
            continue  # 450 MB each
        if extra in NEEDED and not shutil.which(NEEDED[extra]):
            continue
        command = [word.format(capture=CAPTURES / "base_tiny.pcap") for word in words]
        run = ["-m", "kdissect", *command] if command else ["-c", "import kdissect.notebook"]
        done = environment.run(environment.python, "-P", *run, ok=False)
        assert done.returncode == (2 if command else 1), (extra, done.stderr)
        (line,) = [one for one in done.stderr.splitlines() if "pip install" in one]
        advice = re.findall(r": (\S*(?:pip|python3) .*)$", line)[0]
        print(f"\n{way}, {extra}: {advice}")
        assert shlex.split(advice)[0].startswith(("pip", str(environment.folder)))
        environment.run("bash", "-c", advice)
        environment.run(environment.python, "-P", *run)
