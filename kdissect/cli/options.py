"""Options that several commands share."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any, TypeVar

import click

from kdissect.cli.printing import terminal
from kdissect.problems import UsageError

F = TypeVar("F", bound=Callable[..., Any])

FORMATS = ("table", "jsonl", "csv", "arrow", "parquet")
EXCHANGE_FORMATS = ("zeek", "zeek-json", "perfetto")
"""Formats of other programs for exchanges, which the reading command writes besides."""
ENDINGS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".arrow": "arrow", ".parquet": "parquet"}
"""What a file is written as whose name ends so, where no --format says."""
URL_MARK = "://"
"""What tells a receiver from a time among the values of --to."""
OF_OTHERS = stat.S_IRGRP | stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH
"""Bits of a mode by which others than the owner read or write a file."""


LARGEST = 2**63 - 1
"""The largest number that Arrow and numpy count rows and bytes with."""
LONGEST = 1e9
"""Seconds of the longest time that an option takes, 31 years: int64 holds a capture's nanoseconds and those of it."""


jobs_option = click.option(
    "--jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Threads to read with; as many as there are cores, if not said.",
)
memory_option = click.option(
    "--max-memory",
    "memory",
    metavar="SIZE",
    default="512MB",
    callback=lambda context, parameter, value: size(context, parameter, value),
    help="Answers that need all rows at once leave out rows beyond this, and report it (512MB).",
)
timings_option = click.option("--timings", is_flag=True, help="Say on standard error where the time went, by layer.")


def key_file(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Returns the path of a file with keys as it was given; says so if others can read or write that file."""
    if value is not None and not context.resilient_parsing:
        with contextlib.suppress(OSError):  # whatever reads it says what is wrong
            found = os.stat(value)
            if stat.S_ISREG(found.st_mode) and found.st_mode & OF_OTHERS:
                mode = f"{stat.S_IMODE(found.st_mode):04o}"
                terminal.say(f"kdissect: {value} holds keys, and other users can open it (mode {mode}): chmod 600")
    return value


def engine_options(function: F) -> F:
    """Add what every command that reads captures takes; it arrives as keyword arguments, for `open_capture`."""
    return reading_options(click.option("--to", "end", metavar="TIME", help="Leave out what came after.")(function))


def reading_options(function: F) -> F:
    """`engine_options` without --to."""
    for add in (
        click.option("--verify", is_flag=True, help="Decompress record batches and check their checksums."),
        click.option(
            "--from",
            "start",
            metavar="TIME",
            help="Leave out what came before: a time of day, or ISO 8601; UTC unless it has a zone.",
        ),
        click.option(
            "--hosts",
            type=click.Path(),
            metavar="FILE",
            multiple=True,
            help="Names of addresses: like /etc/hosts, or kubectl get pods,services,endpoints -o json.",
        ),
        click.option(
            "--keylog",
            type=click.Path(),
            metavar="FILE",
            callback=key_file,
            help="TLS keys (SSLKEYLOGFILE format) to decrypt with.",
        ),
    ):
        function = add(function)
    return function


def selection_options(function: F) -> F:
    """--client, --broker and --topic; they arrive as tuples, for `open_capture`."""
    for add in (
        click.option("--topic", multiple=True, metavar="NAME", help="Only these topics; may be repeated."),
        click.option("--broker", multiple=True, metavar="ID|IP[:PORT]", help="Only these brokers; may be repeated."),
        click.option("--client", multiple=True, metavar="ID|IP[:PORT]", help="Only these clients; may be repeated."),
    ):
        function = add(function)
    return function


def capture_arguments(complete: Callable[..., Any] | None = None) -> Callable[[F], F]:
    """CAPTURE... or --demo, with the engine options; `complete` answers shell completion of CAPTURE."""

    def add(function: F) -> F:
        function = click.argument(
            "captures", nargs=-1, type=click.Path(), metavar="CAPTURE...", shell_complete=complete
        )(function)
        function = click.option("--demo", is_flag=True, help="Use the capture that ships with kdissect.")(function)
        return engine_options(memory_option(jobs_option(timings_option(function))))

    return add


def record_options(function: F) -> F:
    """--partition, --offset and --reveal, for tables of record batches and records."""
    for add in (
        reveal_option,
        click.option(
            "--offset", metavar="A..B", callback=offset_range, help="Only records of these offsets (A, A.., ..B)."
        ),
        click.option(
            "--partition", multiple=True, type=int, metavar="P", help="Only these partitions; may be repeated."
        ),
    ):
        function = add(function)
    return function


def reveal_option(function: F) -> F:
    """--reveal alone."""
    return click.option("--reveal", is_flag=True, help="Show keys, values and headers of records.")(function)


def slow_option(function: F) -> F:
    """--slow alone."""
    return click.option(
        "--slow",
        metavar="TIME",
        callback=seconds,
        help="Findings call a request slow from this on (1s).",
    )(function)


def output_options(function: F) -> F:
    """--format, --csv-safe and -o for rows."""
    return _output_options(function, FORMATS)


def table_output_options(function: F) -> F:
    """`output_options` with the formats for exchanges."""
    return _output_options(function, (*FORMATS, *EXCHANGE_FORMATS))


def _output_options(function: F, formats: tuple[str, ...]) -> F:
    function = click.option(
        "--csv-safe", is_flag=True, callback=_for_csv, help="Put ' before CSV texts that a spreadsheet would run."
    )(function)
    function = click.option(
        "--format",
        "form",
        type=click.Choice(formats),
        is_eager=True,
        help="How rows are written; if not said, as FILE's ending tells (.csv, .jsonl, .arrow, .parquet), else table.",
    )(function)
    return click.option(
        "-o",
        "--output",
        type=click.Path(),
        is_eager=True,
        metavar="FILE|DIR/",
        help="Write there; DIR/ gets every table as Parquet, except those made only when asked for (kdissect tables).",
    )(function)


def _for_csv(context: click.Context, parameter: click.Parameter, value: bool) -> bool:
    if value and written_as(context.params.get("form"), context.params.get("output")) != "csv":
        raise click.UsageError("--csv-safe needs --format csv")
    return value


def written_as(form: str | None, output: str | None, usual: str = "table") -> str:
    """The format of rows: the one asked for, else what the file's name ends with, else the usual one."""
    return form or ENDINGS.get(PurePath(output or "").suffix.lower(), usual)


def order_options(function: F) -> F:
    """--sort and --limit for rows."""
    for add in (
        click.option("--limit", type=click.IntRange(0, LARGEST), metavar="N", help="At most so many rows."),
        click.option(
            "--sort",
            metavar="A,-B",
            callback=comma_list,
            help="Order by these columns; - before a name: largest first.",
        ),
    ):
        function = add(function)
    return function


def time_options(function: F) -> F:
    """--utc and --local."""
    return click.option(
        "--local/--utc", "local", default=False, help="Times in the local zone, or in UTC (the default)."
    )(function)


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    """`1s`, `500ms`, `5m` or a bare number of seconds."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h)?", value.strip())
    if found is None or not 0 < float(found[1]) * _UNITS[found[2] or "s"] <= LONGEST:
        raise click.BadParameter(f"{value!r} is no length of time; say it like 1s, 500ms or 5m")
    return float(found[1]) * _UNITS[found[2] or "s"]


def size(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """`512MB`, `2GB` (powers of ten) or a bare number of bytes."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?B?)", value.strip())
    number = float(found[1]) * 1000 ** " kMGT".index(found[2].rstrip("B") or " ") if found else LARGEST
    if number >= LARGEST:
        raise click.BadParameter(f"{value!r} is no size; say it like 512MB or 2GB")
    return int(number)


def offset_range(
    context: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int | None, int | None] | None:
    """`A..B`, `A..`, `..B` or `A`: first and last offset, both included."""
    if value is None:
        return None
    found = re.fullmatch(r"(-?\d{1,18})?(\.\.)?(-?\d{1,18})?", value.strip())
    first, dots, last = found.groups() if found else (None, None, None)
    if (first is None and last is None) or (dots is None and last is not None):
        raise click.BadParameter(f"{value!r} is no range of offsets; say it like 100..200, 100.., ..200 or 100")
    if dots is None:
        last = first
    if first is not None and last is not None and int(first) > int(last):
        raise click.BadParameter(f"{value!r} ends before it begins")
    return None if first is None else int(first), None if last is None else int(last)


def comma_list(context: click.Context, parameter: click.Parameter, value: str | None) -> list[str] | None:
    """`a,b` as a list of names."""
    return None if value is None else [name.strip() for name in value.split(",") if name.strip()]


def receiver_of(places: Sequence[str]) -> str | None:
    """The URL among the values of --to; None if there is none. Raises UsageError for several."""
    urls = [text for text in places if URL_MARK in text]
    if len(urls) > 1:
        raise UsageError("--to takes one receiver")
    return urls[0] if urls else None
