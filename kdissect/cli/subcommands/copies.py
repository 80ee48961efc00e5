"""The commands that write captures: `cut` and `redact`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from kdissect.cli.opening import STDIN, open_capture
from kdissect.cli.options import capture_arguments, key_file
from kdissect.cli.printing import terminal
from kdissect.cli.printing.words import count, number_of, size
from kdissect.output import OutputError, distinct, whole_file
from kdissect.problems import UsageError

if TYPE_CHECKING:
    from kdissect.engine.extracts.checking import Checked
    from kdissect.engine.extracts.cutting import Written
    from kdissect.engine.extracts.redacting import Redacted
    from kdissect.rewriting.standins import StandIns

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
    same values there. With --alone it is as small as can be. Options --client, --topic, --group and --where take whole
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
@click.option(
    "--names",
    type=click.Path(),
    metavar="KEYFILE",
    callback=key_file,
    help="Give names stand-ins, the same ones wherever this key file is used; it is made where there is none. Keep it.",
)
@click.option("--plain", is_flag=True, help="Write TLS connections whose keys are given (--keylog) as plain text.")
@click.option("--check", is_flag=True, help="Write nothing: say what a redacted capture still tells (exit code 1).")
@click.option("-o", "--output", type=click.Path(), metavar="FILE", help="The capture to write (- for standard output).")
def redact(
    captures: tuple[str, ...], demo: bool, names: str | None, plain: bool, check: bool, output: str | None,
    **settings: Any,
) -> None:  # fmt: skip
    """Write a copy of a capture that can be shown to others.

    Only an allow list stays: numbers, words of the protocol, and names of topics, groups, users and clients.
    Addresses of brokers stay, and values of configurations that are booleans, numbers or words that Kafka defines.
    Everything else, and everything that is not Kafka or cannot be read as Kafka, becomes stand-ins of the same
    length; the same exchanges come out.

    With --plain TLS that can be decrypted becomes plain TCP in the copy, packet by packet, redacted like the rest.

    With --names, names that people chose get a stand-in too. Option --check lists all readable text that a redacted
    capture still has, with its count. With --names and its key file it judges names as well.
    """
    if check and plain:
        raise UsageError("--plain writes a capture, and --check writes nothing")
    if check == (output is not None):
        raise UsageError("redact takes either -o FILE or --check")
    capture = open_capture(captures, demo=demo, **settings)
    if check:
        _check(capture.check(None if names is None else _stand_ins(names, required=True)), names)
        return
    target, name = _target(output or STDIN)
    words = None if names is None else _stand_ins(names)
    if names is not None:
        distinct(names, [output, *captures])
    written = capture.redact(target, names=words, plain=plain)
    if words is not None and names is not None:
        with whole_file(names) as stream:
            stream.write(words.dumps())
    _say(written, name)
    terminal.say(
        f"{number_of(written.addresses, 'address', 'addresses')} replaced, {number_of(written.blanked, 'text')} blanked"
    )
    if written.decrypted:
        terminal.say(f"TLS of {number_of(written.decrypted, 'pair')} of endpoints is plain text in it")
    kinds = dict(written.kept)
    renamed = kinds.pop("names", 0) if words is not None else 0
    kept = ", ".join(f"{count(number)} {what}" for what, number in kinds.items() if number)
    terminal.say(f"kept: {kept or 'no text'}")
    if written.configurations:
        terminal.say(f"values kept of: {', '.join(sorted(written.configurations))}")
    if words is None:
        terminal.say(
            "names are those of topics, groups, users, clients and hosts of brokers: look whether they may be shown"
        )
    else:
        terminal.say(
            f"{number_of(len(words.used), 'name')} in {number_of(renamed, 'place')} got stand-ins, kept in {names}: it "
            "turns them back, keep it"
        )
    if written.lost:
        terminal.say(f"{number_of(written.lost, 'message')} could not be put together and were blanked")


def _stand_ins(path: str, required: bool = False) -> StandIns:
    """The stand-ins of a key file; new ones where no file is there, unless it is `required`."""
    from kdissect.rewriting.standins import StandIns

    try:
        return StandIns.loads(Path(path).read_bytes())
    except FileNotFoundError:
        if required:
            raise UsageError(f"{path}: no such key file") from None
        try:  # for its owner only; and what cannot be written is known before anything is
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            words = StandIns.new()
            Path(path).write_bytes(words.dumps())
        except OSError as error:
            raise OutputError(path, error) from None
        return words
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def _check(checked: Checked, names: str | None) -> None:
    """Say what was found; ends with code 1 where something was."""
    terminal.print_plain(f"frame {left.frame}: {left.text}" for left in checked.found)
    for stays in (False, True):
        terminal.print_plain(
            f"frame {one.frame}: {one.text} ({'may stay: ' if stays else ''}{one.what}, {number_of(one.count, 'time')})"
            for one in checked.texts
            if one.stays == stays
        )
    if checked.frames:
        told = f"{number_of(checked.frames, 'packet')} of {count(checked.packets)} say what redact would replace"
    else:
        told = f"{number_of(checked.packets, 'packet')}: nothing that redact would replace"
    terminal.say(told)
    telling = [one for one in checked.texts if not one.stays]
    kept = len(checked.texts) - len(telling)
    if telling or checked.further:
        terminal.say(f"{number_of(len(telling) + checked.further, 'readable text')} that may not stay")
    terminal.say(f"{number_of(kept, 'readable text')} that may stay" + (", names among them" if names is None else ""))
    if names is None:
        terminal.say("names were not judged: --names KEYFILE does")
    if not checked.exact:
        terminal.say("not as redact writes it: contents of the file other than packets were not checked")
    if not checked.clean:
        click.get_current_context().exit(1)


def _target(output: str) -> tuple[str | BinaryIO, str]:
    if output != STDIN:
        return output, output
    terminal.refuse_binary("a capture")
    return sys.stdout.buffer, "standard output"


def _say(written: Written | Redacted, name: str) -> None:
    terminal.say(
        f"{number_of(written.packets, 'packet')} ({size(written.bytes)}) written to {name} as {written.format}"
    )
