"""The command `crosscheck`: a second opinion by tshark."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kdissect.cli.opening import STDIN, open_capture
from kdissect.cli.options import engine_options
from kdissect.cli.printing import terminal, words
from kdissect.cli.printing.grid import Header, grid
from kdissect.problems import UsageError

if TYPE_CHECKING:
    from kdissect.crosscheck import Crosscheck

MOST = 20
"""Differences without a known reason that are printed one by one."""


@click.command(short_help="The same capture read by tshark: where both agree.")
@click.argument("captures", nargs=-1, type=click.Path(), metavar="CAPTURE")
@click.option("--demo", is_flag=True, help="Use the capture that ships with kdissect.")
@engine_options
def crosscheck(captures: tuple[str, ...], demo: bool, **settings: Any) -> None:
    """Read a capture with tshark too (through pyshark), and say where both agree and where they differ.

    Compared are all requests and all pairs of requests and responses. tshark decodes fewer versions; what it has no
    layout for is counted apart. Takes about a second per thousand packets.
    """
    capture = open_capture(captures, demo=demo, **settings)
    path = _file(captures, demo)
    from kdissect.crosscheck import crosscheck as compare

    tables = capture.tables(["connections", "exchanges"])
    connections = tables["connections"].select(["is_kafka", "broker_port"]).to_pylist()
    ports = {row["broker_port"] for row in connections if row["is_kafka"]}
    out = terminal.console()
    for line in _lines(compare(path, tables["exchanges"], ports), terminal.width()):
        out.print(line)
    sys.stdout.flush()


def _file(captures: tuple[str, ...], demo: bool) -> str:
    if demo:
        from kdissect.demo import CAPTURE

        return str(CAPTURE)
    if len(captures) != 1 or captures[0] == STDIN or not Path(captures[0]).is_file():
        raise UsageError("crosscheck compares one capture file, which both can read")
    return captures[0]


def _lines(result: Crosscheck, width: int) -> Iterator[Any]:
    from kdissect.schema import index

    def name(key: int | None) -> str:
        return "" if key is None else index.api_name(key) or f"key {key}"

    yield f"tshark {result.tshark} and kdissect agree on {words.number_of(result.requests, 'request')} and " \
          f"{words.number_of(result.pairs, 'pair')} of request and response."  # fmt: skip
    if result.beyond:
        yield ""
        yield f"{words.number_of(result.beyond.total(), 'pair')} of versions that tshark has no layout for:"
        versions: dict[int, list[int]] = {}
        counts: Counter[int] = Counter()
        for (key, version), n in sorted(result.beyond.items()):
            versions.setdefault(key, []).append(version)
            counts[key] += n
        rows = [(name(key), words.versions(found), words.count(counts[key])) for key, found in versions.items()]
        yield from grid([Header("  API"), Header("versions"), Header("pairs", right=True)],
                        [(f"  {row[0]}", *row[1:]) for row in rows], width)  # fmt: skip
    told = Counter((one.what, one.shown_by, one.reason) for one in result.differences)
    if told:
        yield ""
        yield "Shown by one alone:"
        for (what, by, reason), n in told.most_common():
            yield f"  {words.number_of(n, what)} by {by}: {reason}"
    unexplained = result.unexplained
    if unexplained:
        yield ""
        rows3 = [
            (f"  {one.frame}", one.shown_by, one.what, name(one.key), str(one.version), str(one.correlation_id))
            for one in unexplained[:MOST]
        ]
        heads = [Header("  frame", right=True), Header("shown by"), Header("what"), Header("API"),
                 Header("version", right=True), Header("correlation id", right=True)]  # fmt: skip
        yield from grid(heads, rows3, width)
        if len(unexplained) > MOST:
            yield f"  and {words.count(len(unexplained) - MOST)} more"
    elif not told:
        yield "They differ nowhere."
