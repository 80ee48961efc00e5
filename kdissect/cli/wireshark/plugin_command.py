"""`wireshark install` and `wireshark uninstall`."""

from __future__ import annotations

from pathlib import Path

import click

from kdissect.cli.printing import terminal

folder_option = click.option(
    "--folder",
    type=click.Path(),
    metavar="DIR",
    help="Wireshark's folder for Lua plugins; what `tshark -G folders` names, if not said.",
)


@click.group(short_help="A dissector for Wireshark: install, uninstall.", invoke_without_command=True)
@click.pass_context
def wireshark(context: click.Context) -> None:
    """Make Wireshark and tshark dissect Kafka by kdissect's schema: every API and version, both directions."""
    if context.invoked_subcommand is None:
        raise click.UsageError("say: kdissect wireshark install, or kdissect wireshark uninstall")


@wireshark.command(short_help="Write the plugin into Wireshark's personal folder.")
@folder_option
def install(folder: str | None) -> None:
    """Write the plugin, one Lua file, into Wireshark's personal folder of plugins, and print its path.

    It takes TCP port 9092 over from Wireshark's own Kafka dissector (preference kdissect.ports) and finds Kafka on
    other ports by content (kdissect.content).
    """
    from kdissect.wireshark import installation

    there = None
    if folder is None:
        there = installation.find_wireshark()
        folder = str(there.folder)
    path = installation.install(Path(folder))
    click.echo(path)
    terminal.say(f"wrote the plugin ({path.stat().st_size // 1000} kB)")
    terminal.say(
        "Wireshark reads it when it starts; filter by kdissect.api == 1, go back for a port by -d tcp.port==9092,kafka"
    )
    if installation.runs_as_root():
        newer = there is not None and there.version is not None and there.version >= installation.NO_ROOT
        terminal.say(
            f"you are root: Wireshark 4.4 and newer{', as this one,' if newer else ''} load no user's scripts as root; "
            "install it as the user who runs Wireshark"
        )


@wireshark.command(short_help="Take the plugin away.")
@folder_option
def uninstall(folder: str | None) -> None:
    """Take the plugin out of Wireshark's personal folder; Wireshark's own Kafka dissector is back at its next start."""
    from kdissect.wireshark import installation

    place = Path(folder) if folder is not None else installation.find_wireshark().folder
    gone = installation.uninstall(place)
    terminal.say(f"removed {gone}" if gone else f"there is no plugin of kdissect's in {place}")
