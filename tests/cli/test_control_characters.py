"""No text from a capture or a file name makes a terminal do anything, through any command and format."""

from __future__ import annotations

import base64
import itertools
import json
import os
import pty
import random
import re
import subprocess
import sys
import threading
import unicodedata
import zlib
from html import unescape
from pathlib import Path

import pytest

from kdissect.tables.declaration import TABLES
from tests import planted

INJECTIONS = (
    "\x1b]0;owned\x07", "\x1b[2J\x1b[H", "\x1b[31mred", "\x1bP$q\x1b\\", "\x1b[6n", "\x9b31m", "\x9d0;owned\x9c",
    "a\x00b", "a\x08b", "a\rb", "a\nkdissect: forged", "\x7f", "\x85", "\t=1+2", "=cmd|' /C calc'!A0", "+1", "-1",
    "@SUM(1)", "\u202egnp.exe", "\u2066x\u2069", "\u200b", "a\u200db", "\u200e", "\u200f", "\u061c", "\u00ad", "\ufeff",
    "\u2028", "\u2029", "\u2060", "\u180e", "\ufff9x\ufffb", "\U000e0041\U000e007f", "\u3164", "\ue000",
    "\uffff", "\U0010ffff",
    "[bold red]x[/]", "</script><script>alert(1)</script>", "{{7*7}}", '"quoted","\x1b[0m"', "\\x1b[0m", "é 日本 🎉",
)  # fmt: skip
FORBIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
"""Categories of Unicode that show nothing, or do something."""
NAMED = (0, 1, 3, 11, 15, 16, 17, 19, 22, 32, 68, 78)
"""APIs whose names reach tables."""
RUN = """
import json, sys
from kdissect.arrays.lean_arrow import refused
from kdissect.cli.main import main
from kdissect.cli.printing import progress
progress.PATIENCE = 1e9  # a bar moves the cursor, and is none of the capture's text
with refused("colorama"):  # numba loads it, in a checkout; it writes to the terminal when the program ends
    for arguments in json.load(open(sys.argv[1])):
        main(arguments)
"""


def names(count: int) -> list[str]:
    """The corpus, then random text of all of Unicode."""
    chance = random.Random(21)

    def character() -> str:
        top = chance.choice((0x20, 0x100, 0x3000, 0x110000))
        return next(c for c in iter(lambda: chr(chance.randrange(top)), None) if not "\ud800" <= c <= "\udfff")

    return [*INJECTIONS, *("".join(character() for _ in range(chance.randint(1, 12))) for _ in range(count))]


def on_a_terminal(commands: list[list[str]], folder: Path) -> str:
    """What a terminal (both streams) gets of commands that run one after the other."""
    (folder / "commands.json").write_text(json.dumps(commands))
    ours, theirs = pty.openpty()
    got: list[bytes] = []

    def take() -> None:
        try:
            while piece := os.read(ours, 1 << 16):
                got.append(piece)
        except OSError:  # closed by the last writer
            pass

    reader = threading.Thread(target=take)
    reader.start()
    environment = os.environ | {
        "NO_COLOR": "1",
        "TERM": "xterm-256color",
        "COLUMNS": "200",
        "PYTHONIOENCODING": "utf-8",
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(folder / "commands.json")], stdin=subprocess.DEVNULL, stdout=theirs,
        stderr=theirs, env=environment, cwd=folder, check=False,
    )  # fmt: skip
    os.close(theirs)
    reader.join()
    os.close(ours)
    text = b"".join(got).decode()
    assert done.returncode == 0, text[-2000:]
    return text.replace("\r\n", "\n")


def hidden(text: str) -> list[str]:
    """Characters of the text, line ends aside, that a terminal may obey, each with what stands around it."""
    found = {c for c in set(text) - {"\n"} if unicodedata.category(c) in FORBIDDEN}
    return sorted(repr(text[max(0, text.index(c) - 80) : text.index(c) + 20]) for c in found)


@pytest.mark.parametrize("count", [60, pytest.param(10_000, marks=[pytest.mark.exhaustive, pytest.mark.timeout(3600)])])
def test_a_terminal_gets_no_control_characters(count: int, tmp_path: Path) -> None:
    given = names(count)
    texts = itertools.cycle(given)
    kinds = [kind for kind in planted.kinds() if kind[0] in NAMED]
    made = planted.capture(kinds, lambda: next(texts), lambda: next(texts).encode())
    while next(texts) != given[-1]:
        made += planted.capture(kinds[::7], lambda: next(texts), lambda: next(texts).encode())[24:]
        if len(made) > 40 * count * 100:
            break
    file = "\x1b]0;owned\x07\u202e\n\x9b2J.pcap"
    (tmp_path / file).write_bytes(made)
    forms = ("table", "csv", "jsonl")
    tables = [
        [file, "--table", name, "--format", form]
        for n, name in enumerate(TABLES)
        for form in (forms if count > 1000 else forms[n % 3 : n % 3 + 1])
    ]
    commands = [
        *([file, "--by", by, "--top", "1000"] for by in ("api", "client", "broker", "version")),
        *tables, [file, "--table", "exchanges", "--format", "arrow"],
        *([file, "--messages", f"CreateTopics.{side}"] for side in ("request", "response")),
        [file, "--messages", "Metadata.response", "--format", "csv"],
        [file, "--messages", "Metadata.response", "--format", "table"],
        [file, "--table", "records", "--reveal"],
        [file, "--table", "exchanges", "--format", "csv", "--csv-safe"],
        ["show", file, "--frame", "4"], ["show", file, "--frame", "500"], ["show", "--wireshark", file, "--frame", "4"],
        ["why", file], ["why", file, "1"], ["slowest", file], ["errors", file], ["gaps", file], ["timeline", file],
        ["stream", file, "--client", "é 日本 🎉"], ["stream", file, "--transactional-id", "x"], ["sessions", file],
        ["traffic", file], ["traffic", file, "--format", "csv"],
        ["hops", file], ["hops", file, "--format", "csv"], ["otlp", file, "-o", "-"], ["otlp", file],
        ["otlp", file, "--to", file], ["otlp", file, "--to", f"http://{file}"], ["otlp", file, "-o", f"{file}.spans"],
        ["redact", "--check", file],
        ["redact", file, "--names", f"{file}.key", "-o", f"{file}.named"],
        ["sql", file, "select * from exchanges"], ["sql", file, "select client_id from exchanges", "--format", "csv"],
        ["sql", file, f"select {file}"], ["diff", file, file], ["latency", file, "--by", "client,topic"],
        *(["latency", file, "--by", "client,broker", "--format", form] for form in ("csv", "jsonl")),
        [file, "--html", "-"], ["redact", file, "-o", "-"], ["cut", file, "--frame", "4", "-o", "-"],
        [file, "--html", f"{file}.html"], ["redact", file, "-o", f"{file}.safe"], [file, "-o", f"{file}.d/"],
        ["cut", file, "--frame", "4", "-o", f"{file}.cut"],
        [f"{file}.missing"], [file, "--table", file], [file, "--table", "exchanges", "--columns", file],
        [file, "--table", "exchanges", "--where", f"client_id = {file}"], [file, "--client", file],
        [file, "--messages", f"{file}.request"], ["show", file, f"{file}:1"], [f"--{file}"], [file, "--keylog", file],
        ["budget", file], ["whatif", file, "--max-wait", "1s", "--linger", "5ms"], ["top", file, "--once"],
        ["top", file, "--once", "--format", "jsonl"], ["annotate", file, "-o", f"{file}.ng"],
        [file, "--timings"], ["crosscheck", file], ["crosscheck", f"{file}.missing"], ["tables", file],
        ["schema", file],
    ]  # fmt: skip
    seen = on_a_terminal(commands, tmp_path)
    assert hidden(seen) == []
    assert seen.count("\\u001b[2J\\u001b[H") >= 3, "shown, not swallowed"
    page = (tmp_path / f"{file}.html").read_text()
    island = re.search(r'<script type="application/octet-stream" id="data">(.*?)</script>', page, re.DOTALL)
    shown = unescape(re.sub(r"<script.*?</script>|<style.*?</style>", "", page, flags=re.DOTALL))
    assert hidden(shown.replace("\t", "")) == []
    assert island is not None
    packed = json.loads(zlib.decompress(base64.b64decode(island[1])))
    assert packed["bytes"]
    assert hidden(json.dumps(packed, ensure_ascii=False)) == []


def test_csv_in_a_pipe_is_exact_and_safe_when_asked(tmp_path: Path) -> None:
    import csv

    texts = itertools.cycle(INJECTIONS)
    path = tmp_path / "a.pcap"
    path.write_bytes(planted.capture([(3, 1)] * 60, lambda: next(texts), lambda: b""))
    rows = {}
    for option in ([], ["--csv-safe"]):
        done = subprocess.run(
            [sys.executable, "-m", "kdissect", str(path), "--table", "exchanges", "--columns", "client_id", "--format",
             "csv", *option], capture_output=True, check=True,
        )  # fmt: skip
        rows[bool(option)] = [row[0] for row in csv.reader(done.stdout.decode().splitlines(keepends=True))][1:]
    assert {text for text in rows[False] if text.startswith(("=", "\t", "+", "-", "@"))}
    assert set(rows[False]) <= {text.replace("\r\n", "\n") for text in INJECTIONS}
    for exact, safe in zip(rows[False], rows[True], strict=True):
        assert safe == ("'" + exact if exact.startswith(("=", "+", "-", "@", "\t", "\r")) else exact)
