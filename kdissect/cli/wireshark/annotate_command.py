"""`annotate`: a capture with kdissect's verdicts as comments on its packets."""

from __future__ import annotations

import sys
from typing import Any

import click

from kdissect.cli.opening import STDIN, open_capture
from kdissect.cli.options import capture_arguments
from kdissect.cli.printing import terminal
from kdissect.cli.printing.words import number_of, size


@click.command(short_help="The same packets with comments: exchange, whose time, findings.")
@capture_arguments()
@click.option(
    "-o", "--output", type=click.Path(), metavar="FILE", required=True,
    help="The pcapng file to write (- for standard output).",
)  # fmt: skip
@click.option(
    "--macros", type=click.Path(), metavar="FILE", help="Write display filter macros for the comments there, too."
)
def annotate(captures: tuple[str, ...], demo: bool, output: str, macros: str | None, **settings: Any) -> None:
    """Write a copy of a capture, as pcapng, whose packets carry comments that any Wireshark shows.

    The comment on the packet that completes a request or response has its exchange, its latency and whose time that
    was. It has the reason why the broker answered when it did, its error, and the findings that rest on it. The packets
    themselves are those of the capture, credentials included.
    """
    from kdissect.arrays.lean_arrow import load_arrow_alone

    load_arrow_alone()
    from kdissect.wireshark.annotation import annotate as write

    capture = open_capture(captures, demo=demo, **settings)
    done = write(capture, sys.stdout.buffer if output == STDIN else output, macros)
    name = "standard output" if output == STDIN else output
    terminal.say(
        f"{number_of(done.written.packets, 'packet')} ({size(done.written.bytes)}) with "
        f"{number_of(done.written.comments, 'comment')} written to {name} as pcapng; filter: "
        'frame.comment contains "EXCHANGE_ID;"'
    )
