"""`man`: the manual page, made of the commands' own help, for man(1) and for packages of kdissect."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from kdissect import __version__
from kdissect.cli.printing import terminal


@click.command(short_help="The manual page: kdissect man | man -l -")
@click.pass_context
def man(context: click.Context) -> None:
    """Print the manual page of all commands, for man: kdissect man | man -l -

    To keep it: kdissect man > ~/.local/share/man/man1/kdissect.1
    """
    parent = context.find_root().command
    assert isinstance(parent, click.Group)
    terminal.print_plain(page(parent, "kdissect", "CAPTURE..."))


def page(program: click.Group, name: str, nameless: str) -> Iterator[str]:
    """The lines of a page in man's own macros (man(7)). `nameless`: the command that is run where none is named."""
    yield f'.TH {name.upper()} 1 "" "{name} {_plain(__version__)}" "User Commands"'
    yield ".SH NAME"
    yield f"{name} \\- {_plain((program.help or '').strip().rstrip('.'))}"
    yield ".SH SYNOPSIS"
    yield f".B {name}"
    yield f"{_plain(nameless)} [OPTIONS]"
    yield ".br"
    yield f".B {name}"
    yield "COMMAND ..."
    main = program.commands[nameless]
    yield ".SH DESCRIPTION"
    yield from _paragraphs(main.help or "")
    yield ".SH OPTIONS"
    yield from _options(main, name)
    yield ".SH COMMANDS"
    for each, command in program.commands.items():
        if each == nameless or command.hidden:
            continue
        yield from _command(command, f"{name} {each}")
    yield ".SH EXIT STATUS"
    yield "0: read, with or without findings. 1: a capture could not be read at all, a job failed, or a check found"
    yield "something. 2: bad arguments, or an output that cannot be written."


def _command(command: click.Command, name: str) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    yield f".SS {_plain(name)} {_plain(' '.join(command.collect_usage_pieces(context)))}"
    yield from _paragraphs(command.help or "")
    yield from _options(command, name)
    if isinstance(command, click.Group):
        for each, sub in command.commands.items():
            yield from _command(sub, f"{name} {each}")


def _paragraphs(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        yield ".PP"
        yield _plain(" ".join(paragraph.split()))


def _options(command: click.Command, name: str) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            yield ".TP"
            yield f".B {_plain(record[0])}"
            yield _plain(" ".join(record[1].split()))


def _plain(text: str) -> str:
    """A text that means nothing to man: backslashes and hyphens as they are, no request at a line's beginning."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace('"', "\\(dq")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
