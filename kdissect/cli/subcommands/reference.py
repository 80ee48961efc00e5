"""`schema`, `tables`, `completion`: what there is to ask for."""

from __future__ import annotations

import click

from kdissect.cli.printing import terminal


@click.command(short_help="The layout of messages on the wire.")
@click.argument("words", nargs=-1, metavar="[API [VERSION [request|response]]]")
@click.option("--diff", is_flag=True, help="Changes between two versions: --diff API A B.")
def schema(words: tuple[str, ...], diff: bool) -> None:
    """Print the layout of messages on the wire; without an API, all APIs with their versions."""
    from kdissect.cli.subcommands.layouts import difference, layout

    terminal.print_plain(difference(words) if diff else layout(words))


@click.command(short_help="The tables and their columns.")
@click.argument("name", required=False)
def tables(name: str | None) -> None:
    """Print the tables, or one table's columns with their types and meanings.

    A table is made only when somebody asks for it by name where the list says so; `-o DIR/` writes all others.
    """
    from kdissect.tables import declaration

    if name is not None:
        terminal.print_plain(declaration.doc(name).split("\n"))
        return
    width = max(map(len, declaration.TABLES))
    terminal.print_plain(
        [f"{table.name:<{width}}  {declaration.row_text(table)}" for table in declaration.TABLES.values()]
    )


@click.command(short_help="Completion for bash, zsh or fish.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script of a shell: eval "$(kdissect completion bash)"."""
    from click.shell_completion import get_completion_class

    from kdissect.cli.commands import COMPLETION, PROGRAM, main

    made = get_completion_class(shell)
    if made is None:
        raise click.UsageError(f"no completion for {shell}")
    terminal.print_plain(made(main, {}, PROGRAM, COMPLETION).source().split("\n"))
