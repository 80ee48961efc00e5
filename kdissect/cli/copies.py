"""The commands that write captures: `cut` and `redact`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from kdissect.cli.opening import STDIN, open_capture
from kdissect.cli.options import capture_arguments
from kdissect.cli.printing import terminal
from kdissect.cli.printing.words import count, number_of, size

if TYPE_CHECKING:
    from kdissect.engine.extracts.cutting import Written
    from kdissect.engine.extracts.redacting import Redacted

output_option = click.option(
    "-o",
    "--output",
    type=click.Path(),
    metavar="FILE",
    required=True,
    help="The capture to write (- for standard output).",
)


@click.command(short_help="A smaller capture: an exchange, a client, a topic, a time.")
@capture_arguments()
@click.option("--exchange", metavar="ID", help="This exchange, with its connection up to its response.")
@click.option("--connection", metavar="ID", help="All packets of this connection.")
@click.option(
    "--frame", type=click.IntRange(1), metavar="N", help="The exchange whose request or response ends in frame N."
)
@click.option("--alone", is_flag=True, help="Of an exchange: only the handshake and its own packets.")
@click.option("--client", multiple=True, metavar="ID|IP[:PORT]", help="Connections of this client; may be repeated.")
@click.option("--topic", multiple=True, metavar="NAME", help="Connections that speak of this topic; may be repeated.")
@click.option("--group", metavar="NAME", help="Connections of this consumer group.")
@click.option("--where", metavar="EXPRESSION", help='Connections that have such an exchange: "error is not null".')
@output_option
def cut(
    captures: tuple[str, ...],
    demo: bool,
    exchange: str | None,
    connection: str | None,
    frame: int | None,
    alone: bool,
    client: tuple[str, ...],
    topic: tuple[str, ...],
    group: str | None,
    where: str | None,
    output: str,
    start: str | None = None,
    end: str | None = None,
    **settings: Any,
) -> None:
    """Write a smaller capture that Wireshark opens.

    An exchange comes with its connection from the start up to the acknowledgement of its response, so that it has the
    same values there; with --alone it is as small as can be. --client, --topic, --group and --where take whole
    connections; where several are given, an exchange of theirs must fit all.
    """
    capture = open_capture(captures, demo=demo, **settings)
    target, name = _target(output)
    written = capture.cut(
        target, exchange=exchange, connection=connection, frame=frame, start=start, end=end, alone=alone,
        client=client, topic=topic, group=group, where=where,
    )  # fmt: skip
    _say(written, name)


@click.command(short_help="A copy without records, credentials and addresses of clients.")
@capture_arguments()
@output_option
def redact(captures: tuple[str, ...], demo: bool, output: str, **settings: Any) -> None:
    """Write a copy of a capture that can be shown to others.

    What stays is an allow list: numbers, words of the protocol, names of topics, groups, users and clients, addresses
    of brokers, values of configurations that Kafka knows and that are no passwords. Everything else, and everything
    that is not Kafka or cannot be read as Kafka, becomes stand-ins of the same length; the same exchanges come out.
    """
    capture = open_capture(captures, demo=demo, **settings)
    target, name = _target(output)
    written = capture.redact(target)
    _say(written, name)
    terminal.say(
        f"{number_of(written.addresses, 'address', 'addresses')} replaced, {number_of(written.blanked, 'text')} blanked"
    )
    kept = ", ".join(f"{count(number)} {what}" for what, number in written.kept.items() if number)
    terminal.say(f"kept: {kept or 'no text'}")
    if written.configurations:
        named = ", ".join(sorted(written.configurations)[:8]) + (", ..." if len(written.configurations) > 8 else "")
        terminal.say(f"values kept of: {named}")
    terminal.say(
        "names are those of topics, groups, users, clients and hosts of brokers: look whether they may be shown"
    )
    if written.lost:
        terminal.say(f"{number_of(written.lost, 'message')} could not be put together and were blanked")


def _target(output: str) -> tuple[str | BinaryIO, str]:
    if output != STDIN:
        return output, output
    terminal.refuse_binary("a capture")
    return sys.stdout.buffer, "standard output"


def _say(written: Written | Redacted, name: str) -> None:
    terminal.say(
        f"{number_of(written.packets, 'packet')} ({size(written.bytes)}) written to {name} as {written.format}"
    )
