"""A command's own process reaches what it was given and nothing else: files, sockets, programs."""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kdissect.cli.commands import main as commands
from kdissect.cli.confinement.call_filter import filter_program
from kdissect.cli.confinement.landlock import landlock_version
from kdissect.cli.confinement.policy import Policy, command_policy
from kdissect.cli.confinement.sandbox import UNCONFINED, sandbox_name
from kdissect.cli.confinement.system_calls import EXEC, MACHINES, REFUSED
from tests.cli.escapes import MARK, SECRET, tries
from tests.cli.test_poisoned_folder import CAPTURE, LINES
from tests.conftest import CAPTURES, ROOT
from tests.otlp.receiver import receiving

SILENT = {"schema", "tables", "man"}
"""Commands that read no capture."""
READING = {
    "first screen": [CAPTURE],
    "table": [CAPTURE, "--table", "exchanges", "--format", "csv"],
    "report": [CAPTURE, "--html", "out/report.html"],
    "parquet": [CAPTURE, "-o", "out/"],
    "messages": [CAPTURE, "--messages", "ApiVersions.response"],
    "folder": ["linked/"],
    "pattern": ["linked/*.pcap"],
    "threads": [CAPTURE, "--jobs", "2", "--table", "connections"],
    "findings of top": ["top", str(CAPTURES / "k4_session_eviction.pcap"), "--once", "--format", "jsonl"],
    "check": ["redact", CAPTURE, "--check"],
    "stand-ins": ["redact", CAPTURE, "--names", "out/names.key", "-o", "out/named.pcap"],
}
ALL = READING | {name: [name, *words] for name, words in LINES.items() if name not in {*UNCONFINED, *SILENT}}

USUAL = ("first screen", "parquet", "folder", "sql", "redact", "findings of top")
"""What each run of the tests tries; the others are among `whole`."""
FILES = ("report", "messages", "show", "cut", "annotate", "sql", "whatif")


@pytest.fixture
def landlock() -> int:
    version = landlock_version()
    if not version:
        if os.environ.get("KDISSECT_CI"):
            pytest.fail("the kernel of this machine was expected to have Landlock")
        pytest.skip("the kernel has no Landlock, or an old one: commands are not confined here")
    return version


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder to run in; the secret lies in another one."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "secret").write_text("secret")
    (tmp_path / "home" / "elsewhere.pcap").write_bytes(Path(CAPTURE).read_bytes())
    (tmp_path / "run" / "out").mkdir(parents=True)
    (tmp_path / "run" / "linked").mkdir()
    (tmp_path / "run" / "linked" / "a.pcap").symlink_to(tmp_path / "home" / "elsewhere.pcap")
    (tmp_path / "temporary").mkdir()
    return tmp_path


def run(place: Path, line: list[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Runs the command line with a reading that tries to escape."""
    (place / "home" / "secret.removed").write_text("")
    variables = {**os.environ, SECRET: str(place / "home" / "secret"), "TMPDIR": str(place / "temporary"),
                 "PYTHONPATH": str(ROOT)}  # fmt: skip
    return subprocess.run(
        [sys.executable, "-P", "-c", "from tests.cli.escapes import main; main()", *line], capture_output=True,
        check=False, cwd=place / "run", timeout=280, env=variables, **{"stdin": subprocess.DEVNULL, **options},
    )  # fmt: skip


def outcomes(done: subprocess.CompletedProcess[bytes]) -> list[dict[str, str]]:
    """What was tried, by thread."""
    return [json.loads(line.removeprefix(MARK)) for line in done.stderr.decode().splitlines() if line.startswith(MARK)]


def said(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    """Standard error without the tries."""
    return [line for line in done.stderr.decode().splitlines() if not line.startswith(MARK)]


@pytest.mark.parametrize(
    "line",
    [pytest.param(line, id=name, marks=() if name in USUAL else pytest.mark.whole) for name, line in ALL.items()],
)
def test_reading_escapes_nowhere(line: list[str], landlock: int, place: Path) -> None:
    """The command succeeds, and each thread that reads captures was refused each try."""
    done = run(place, line)
    assert done.returncode == (1 if "--check" in line else 0), done.stderr.decode()
    found = outcomes(done)
    assert found, "nothing was tried"
    allowed = {"signal another process"} if landlock < 6 else set()
    for outcome in found:
        assert set(outcome) == set(tries_by_name())
        assert {name: how for name, how in outcome.items() if how != "refused" and name not in allowed} == {}
    if line[0] == "top":
        assert json.loads(done.stdout)["findings"] if "jsonl" in line else done.stdout


@pytest.mark.parametrize("line", [["otlp", CAPTURE, "--to"], ["top", CAPTURE, "--once", "--no-findings", "--otlp"]])
def test_a_sender_reaches_its_receiver_alone(line: list[str], landlock: int, place: Path) -> None:
    """Other ports are refused, and everything that other commands are refused."""
    if landlock < 4:
        pytest.skip("this kernel's Landlock knows no ports")
    with receiving() as taken:
        done = run(place, [*line, taken.url])
    assert done.returncode == 0, done.stderr.decode()
    assert taken.spans
    allowed = {"signal another process"} if landlock < 6 else set()
    assert outcomes(done)
    for outcome in outcomes(done):
        assert {name: how for name, how in outcome.items() if how != "refused" and name not in allowed} == {}


def tries_by_name() -> list[str]:
    os.environ.setdefault(SECRET, "/none")
    return list(tries())


def test_every_command_is_tried_or_has_a_reason() -> None:
    """Here, and in SECURITY.md."""
    assert {*LINES} == {*SILENT, *UNCONFINED, *(name for name in ALL if name in LINES)}
    text = (ROOT / "SECURITY.md").read_text()
    listed = dict(re.findall(r"^  \| `(\w+)` \| (.+) \|$", text, re.MULTILINE))
    assert {name: listed.get(name) for name in UNCONFINED} == UNCONFINED
    for name in commands.commands:
        options = {option for one in commands.commands[name].params for option in one.opts}
        assert ("--no-sandbox" in options) == (name not in UNCONFINED), name


def test_without_a_sandbox_the_tries_succeed(place: Path) -> None:
    """Or else the tests above would hold whatever the sandbox does."""
    (found,) = outcomes(run(place, [CAPTURE, "--no-sandbox"]))
    assert found["open another file"] == found["start a program"] == found["run a program from memory"] == "works"
    assert found["connect"] != "refused"


def test_a_program_that_calls_the_commands_is_not_confined(place: Path) -> None:
    """Nor a notebook or a script that imports kdissect."""
    program = f"""
import subprocess
from kdissect.cli.main import main
import kdissect
assert main([{CAPTURE!r}]) == 0
kdissect.open({CAPTURE!r}).table("exchanges")
open({str(place / "home" / "secret")!r}).close()
subprocess.run(["/bin/true"], check=True)
"""
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL, timeout=120)


@pytest.mark.parametrize(
    "line",
    [pytest.param(ALL[name], id=name, marks=pytest.mark.exhaustive if n > 2 else pytest.mark.whole)
     for n, name in enumerate(FILES)],
)  # fmt: skip
def test_outputs_are_equal(line: list[str], landlock: int, place: Path) -> None:
    confined, free = run(place, line), run(place, [*line, "--no-sandbox"] if line[0] != "sql" else
                                           [line[0], "--no-sandbox", *line[1:]])  # fmt: skip
    assert confined.returncode == free.returncode == 0
    assert confined.stdout == free.stdout
    assert said(confined) == said(free)


def test_standard_input(landlock: int, place: Path) -> None:
    """A file, which may be opened again, and a pipe."""
    with open(CAPTURE, "rb") as file:
        assert run(place, ["-"], stdin=file).returncode == 0
    piped = subprocess.run(["bash", "-c", f"cat {CAPTURE} | {sys.executable} -m kdissect - --table exchanges"],
                           capture_output=True, check=False, timeout=100)  # fmt: skip
    assert piped.returncode == 0, piped.stderr
    given = subprocess.run(["bash", "-c", f"{sys.executable} -m kdissect <(cat {CAPTURE}) > {place}/run/shown"],
                           capture_output=True, check=False, timeout=100)  # fmt: skip
    assert given.returncode == 0, given.stderr


@pytest.mark.parametrize("output", ["new/folder/of/tables/", "out/"])
def test_second_process(output: str, landlock: int, place: Path) -> None:
    """It is started in the sandbox, and writes tables into a folder that there was or was not."""
    base = (CAPTURES / "base.pcap").read_bytes()
    (place / "run" / "large.pcap").write_bytes(base + base[24:] * ((33 << 20) // len(base)))
    done = run(place, ["large.pcap", "-o", output, "--jobs", "2"])
    assert done.returncode == 0, done.stderr
    assert (place / "run" / output / "exchanges.parquet").exists()
    assert all(how == "refused" for outcome in outcomes(done) for how in outcome.values())


def test_output_through_a_link(landlock: int, place: Path) -> None:
    (place / "run" / "link.csv").symlink_to(place / "home" / "rows.csv")
    done = run(place, [CAPTURE, "--table", "exchanges", "-o", "link.csv"])
    assert done.returncode == 0, done.stderr
    assert (place / "home" / "rows.csv").read_text()


def test_an_error_stays_the_same(landlock: int, place: Path) -> None:
    for line in (["none.pcap"], [CAPTURE, "--table", "nosuch"], [CAPTURE, "-o", "/proc/none/"]):
        confined, free = run(place, line), run(place, [*line, "--no-sandbox"])
        assert (confined.returncode, said(confined)) == (free.returncode, said(free))
        assert confined.returncode in (1, 2)


@pytest.mark.parametrize("room", [0, 100 << 20])
def test_memory_that_the_accounts_missed(room: int) -> None:
    """One line and exit code 1: here because there is far too little room."""
    program = f"""
import sys
import kdissect.cli.confinement.sandbox as sandbox
from kdissect.cli.entry import run
sandbox.READING_BYTES, sandbox.CORE_BYTES = {room}, 0
sys.argv = ["kdissect", {CAPTURE!r}, "--max-memory", "256MB"]
run()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, timeout=120)
    assert done.returncode == 1
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("kdissect: not enough memory: ")


def test_version_says_it() -> None:
    done = subprocess.run([sys.executable, "-m", "kdissect", "--version"], capture_output=True, check=True, timeout=60)
    assert sandbox_name() in done.stdout.decode()
    assert re.fullmatch(r"sandbox: Landlock \d+ and seccomp|no sandbox: this kernel has no Landlock", sandbox_name())


def test_following_a_rotated_set_reads_its_folder(tmp_path: Path) -> None:
    capture = tmp_path / "a.pcap"
    capture.write_bytes(b"")
    policy = command_policy("CAPTURE...", {"captures": (str(capture),), "follow": True}, ["captures"])
    assert str(tmp_path) in policy.read
    pattern = command_policy("CAPTURE...", {"captures": (f"{tmp_path}/b*.pcap",), "follow": True}, ["captures"])
    assert str(tmp_path) in pattern.read
    assert str(tmp_path) not in command_policy("CAPTURE...", {"captures": (str(capture),)}, ["captures"]).read


def test_the_current_folder_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m kdissect` puts it among the places of modules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert str(tmp_path) not in Policy().read


@pytest.mark.parametrize("machine", list(MACHINES))
@pytest.mark.parametrize("programs", [False, True])
@pytest.mark.parametrize("connects", [False, True])
def test_the_filter_as_a_processor_runs_it(machine: str, programs: bool, connects: bool) -> None:
    """Each call that is refused is, and others are not; also of another processor and of the x32 interface."""
    known = MACHINES[machine]
    program = filter_program(known, programs, connects)
    allowed, refused, unknown = 0x7FFF0000, 0x00050001, 0x00050026

    def answer(number: int, arguments: tuple[int, ...] = (), arch: int = known.arch) -> int:
        padded = [*arguments, 0, 0, 0, 0, 0, 0][:6]
        data = struct.pack("<IIQ6Q", number, arch, 0, *padded)
        at = value = 0
        while True:
            code, yes, no, operand = program[at]
            if code == 0x06:
                return operand
            if code == 0x20:
                (value,) = struct.unpack_from("<I", data, operand)
                at += 1
            else:
                holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[code]
                at += 1 + (yes if holds else no)

    for name, pair in {**REFUSED, **EXEC}.items():
        number = pair[known.column]
        if number is not None:
            free = (programs and name == "execve") or (connects and name == "connect")
            assert answer(number) == (allowed if free else refused), name
    socket = REFUSED["socket"][known.column]
    assert socket is not None
    for domain in range(48):
        for kind in range(16):
            good = connects and domain in (2, 10) and kind in (1, 2)  # TCP and UDP
            if kind:
                assert answer(socket, (domain, kind | 0o2004000)) == (allowed if good else refused), (domain, kind)
    clone, clone3, ioctl = ((56, 220), (435, 435), (16, 29))
    assert answer(clone[known.column], (0x3D0F00,)) == allowed
    assert answer(clone[known.column], (0x10000000,)) == refused
    assert answer(clone3[known.column]) == unknown
    assert answer(ioctl[known.column], (0, 0x5401)) == allowed
    assert answer(ioctl[known.column], (0, 0x5412)) == refused
    memory = (319, 279)[known.column]
    assert answer(memory, (0, 1)) == (refused if programs else allowed)
    assert answer(memory, (0, 9)) == allowed
    assert answer(0, arch=0x40000003) == refused
    assert answer(0x40000000 | 1) == unknown
