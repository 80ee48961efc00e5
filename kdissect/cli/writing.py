"""The commands that write captures: `cut`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from kdissect.cli import terminal
from kdissect.cli.opening import STDIN, open_capture
from kdissect.cli.options import capture_arguments
from kdissect.cli.words import number_of, size

if TYPE_CHECKING:
    from kdissect.engine.cutting import Written

output_option = click.option(
    "-o",
    "--output",
    type=click.Path(),
    metavar="FILE",
    required=True,
    help="The capture to write (- for standard output).",
)


@click.command(short_help="A smaller capture: an exchange, a connection, a time.")
@capture_arguments()
@click.option("--exchange", metavar="ID", help="This exchange, with its connection up to its response.")
@click.option("--connection", metavar="ID", help="All packets of this connection.")
@click.option(
    "--frame", type=click.IntRange(1), metavar="N", help="The exchange whose request or response ends in frame N."
)
@click.option("--alone", is_flag=True, help="Of an exchange: only the handshake and its own packets.")
@output_option
def cut(
    captures: tuple[str, ...],
    demo: bool,
    exchange: str | None,
    connection: str | None,
    frame: int | None,
    alone: bool,
    output: str,
    start: str | None = None,
    end: str | None = None,
    **settings: Any,
) -> None:
    """Write a smaller capture that Wireshark opens.

    An exchange comes with its connection from the start up to the acknowledgement of its response, so that it has the
    same values there; with --alone it is as small as can be.
    """
    capture = open_capture(captures, demo=demo, **settings)
    target, name = _target(output)
    written = capture.cut(
        target, exchange=exchange, connection=connection, frame=frame, start=start, end=end, alone=alone
    )
    _say(written, name)


def _target(output: str) -> tuple[str | BinaryIO, str]:
    return (sys.stdout.buffer, "standard output") if output == STDIN else (output, output)


def _say(written: Written, name: str) -> None:
    terminal.say(
        f"{number_of(written.packets, 'packet')} ({size(written.bytes)}) written to {name} as {written.format}"
    )
