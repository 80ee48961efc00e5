"""`kdissect top`: traffic as it comes, on a terminal, as lines for scripts, and as metrics."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from kdissect.cli.following import OverwrittenFiles
from kdissect.cli.options import key_file, seconds
from kdissect.cli.printing import terminal
from kdissect.installed_copy import install_command

if TYPE_CHECKING:
    from kdissect.cli.confinement.policy import Policy
    from kdissect.live.running_figures import Figures
    from kdissect.live.source import Source
    from kdissect.live.watched_source import Session
    from kdissect.otlp.live_sender import LiveSender

STEP_S = 0.05
"""How often somebody looks whether it is over."""


@click.command(short_help="Traffic as it comes: brokers, clients, topics, APIs.")
@click.argument("captures", nargs=-1, type=click.Path(), metavar="[FILE|DIR|-]")
@click.option("-i", "--interface", metavar="IFACE", help="Capture there, with tcpdump or dumpcap.")
@click.option(
    "--port", "ports", multiple=True, type=click.IntRange(1, 65535), metavar="N", help="Only these TCP ports."
)
@click.option(
    "--speed", type=click.FloatRange(0, min_open=True), metavar="N", help="Replay a finished capture, N times faster."
)
@click.option(
    "--window", callback=seconds, default="10s", metavar="TIME", help="Rates and quantiles are over this (10s)."
)
@click.option(
    "--ring", callback=seconds, default="60s", metavar="TIME", help="Packets kept on disk, to be written with w (60s)."
)
@click.option("--once", is_flag=True, help="Print one screen and end: of a file all of it, else of one window.")
@click.option("--every", callback=seconds, metavar="TIME", help="Print a screen so often, as lines for scripts.")
@click.option(
    "--format", "form", type=click.Choice(["table", "jsonl"]), help="Of --once and --every; table, if not said."
)
@click.option("--metrics", metavar="HOST:PORT", help="Serve OpenMetrics there; localhost, if only :PORT is said.")
@click.option(
    "--metrics-host", "names", multiple=True, metavar="NAME", help="A name of this host that scrapes may ask for."
)
@click.option(
    "--metrics-cert", "certificate", type=click.Path(), metavar="FILE", help="Serve them by TLS, with this certificate."
)
@click.option("--metrics-key", "key", type=click.Path(), metavar="FILE", callback=key_file, help="Its private key.")
@click.option(
    "--metrics-ca", "authority", type=click.Path(), metavar="FILE", help="Serve clients with certificates by this only."
)
@click.option("--deliveries", is_flag=True, help="Count deliveries by topic and group, in screens and metrics.")
@click.option("--otlp", "receiver", metavar="URL", help="Send exchanges as spans to this OTLP receiver.")
@click.option("--findings/--no-findings", "findings", default=True, help="Look for findings in what the ring holds.")
def top(
    captures: tuple[str, ...], interface: str | None, ports: tuple[int, ...], speed: float | None, window: float,
    ring: float, once: bool, every: float | None, form: str | None, metrics: str | None, names: tuple[str, ...],
    certificate: str | None, key: str | None, authority: str | None, deliveries: bool,
    receiver: str | None, findings: bool,
) -> None:  # fmt: skip
    """Watch Kafka traffic: an interface, a file that grows, a directory of a rotated set, a pipe, or a replay.

    Rates and quantiles are over the last seconds; whose time it was has columns of its own. Only tcpdump (or dumpcap)
    needs privileges.
    """
    if once and every is not None:
        raise click.UsageError("--once and --every exclude each other")
    if speed is not None and not math.isfinite(speed):
        raise click.UsageError("--speed takes a number, such as 10")
    if form is not None and not once and every is None:
        raise click.UsageError("--format needs --once or --every TIME")
    lines = once or every is not None
    if not lines and metrics is None and receiver is None and not sys.stdout.isatty():
        raise click.UsageError(
            "the screen needs a terminal: --once, --every TIME, --metrics HOST:PORT or --otlp URL without one"
        )
    if not lines and sys.stdout.isatty():
        _textual()
    if names and metrics is None:
        raise click.UsageError("--metrics-host goes with --metrics HOST:PORT")
    if ((key or authority) and certificate is None) or (certificate and metrics is None):
        raise click.UsageError("--metrics-key and --metrics-ca go with --metrics-cert, and that with --metrics")
    if receiver is not None:
        from kdissect.otlp import ready, receiver_port

        ready()
        receiver_port(receiver)
    with contextlib.ExitStack() as stack:
        port = None
        if metrics is not None:
            from kdissect.live.metrics_server import open_port

            port = open_port(metrics, names, certificate, key, authority)
            stack.callback(port.close)
        writes = not lines and sys.stdout.isatty()
        source = _confined(interface, ports, captures, speed, findings, writes, receiver)
        from kdissect.arrays.lean_arrow import load_arrow_alone

        load_arrow_alone()
        from kdissect.engine.bounds.spare_memory import frugal
        from kdissect.live.lookout import Lookout
        from kdissect.live.ring import Ring
        from kdissect.live.running_figures import Figures
        from kdissect.live.source import open_source
        from kdissect.live.watched_source import Session

        frugal()
        if source is None:
            source = open_source(captures, None, ports, speed, once)
        figures = Figures(window, deliveries)
        name = interface or captures[0]
        sender = None if receiver is None else stack.enter_context(_sending(receiver, figures))
        lookout = Lookout() if findings else None
        session = stack.enter_context(Session(source, figures, Ring(ring), lookout, sender=sender))
        if port is not None:
            from kdissect.live.metrics import Server

            terminal.say(f"metrics at {Server(port, figures).url}")
        overwritten = OverwrittenFiles(lambda: source.capture.overwritten)
        session.start()
        if lines:
            _lines(session, name, window if every is None else every, once, form or "table", overwritten)
        elif sys.stdout.isatty():
            from kdissect.cli.live.fullscreen import Screen

            Screen(session, name).run()
        else:
            with contextlib.suppress(KeyboardInterrupt):
                _until_over(session, None, overwritten)
        overwritten.say_new()
        if figures.ended and not source.patient and not source.capture.overwritten_files:
            for problem in source.capture.problems[-1:]:
                terminal.say(f"{name}: {problem.detail}")
    if figures.error:
        from kdissect.problems import CaptureUnreadable

        raise CaptureUnreadable(figures.error)


def _confined(
    interface: str | None,
    ports: Sequence[int],
    captures: Sequence[str],
    speed: float | None,
    findings: bool,
    writes: bool,
    receiver: str | None,
) -> Source | None:
    """Confines this process: tcpdump runs by then, and root is given up. Returns the source that it captures for; None
    if there is another one. `writes`: packets may be written into the current folder. `receiver`: URL that spans may be
    sent to."""
    from kdissect.cli.confinement.policy import command_policy
    from kdissect.cli.confinement.sandbox import confine_process, is_own_process
    from kdissect.cli.confinement.user import become_user, user_behind_root

    source = None
    if interface is not None:
        from kdissect.live.source import Interface, open_source

        user = user_behind_root() if is_own_process() else None
        source = open_source(captures, interface, ports, speed, False, user=None if user is None else user.name)
        if user is not None and isinstance(source, Interface) and source.as_user:
            become_user(user, terminal.say)

    def policy() -> Policy:
        given = command_policy("top", {"captures": captures, "follow": True}, ["captures"])
        given.signals = interface is not None  # to tcpdump, which is not in the sandbox
        if writes:
            given.allow_output(".")
        if findings:
            given.allow_python()
        if receiver is not None:
            given.allow_receiver(receiver)
        return given

    confine_process(policy)
    return source


@contextlib.contextmanager
def _sending(url: str, figures: Figures) -> Iterator[LiveSender]:
    """Who sends spans to a receiver; at the end standard error says how many arrived."""
    from kdissect.otlp.live_sender import LiveSender
    from kdissect.otlp.receivers import HttpReceiver

    sender = LiveSender(HttpReceiver(url), lambda text: figures.alert("otlp", "medium", figures.now_us, text))
    try:
        yield sender
    finally:
        sender.close()
        lost = f"; {sender.lost:,} exchanges did not arrive" if sender.lost else ""
        rejected = f"; it {sender.rejections}" if sender.rejections else ""
        terminal.say(f"sent {sender.spans:,} spans to {url}{lost}{rejected}")


def _textual() -> None:
    """Raise UsageError where the screen's library is not installed."""
    from importlib.util import find_spec

    if find_spec("textual") is None:
        raise click.UsageError(f"the screen needs more packages: {install_command('top')}; or use --every 10s")


def _until_over(session: Session, deadline: float | None, overwritten: OverwrittenFiles) -> None:
    while not session.figures.ended and (deadline is None or time.monotonic() < deadline):
        time.sleep(STEP_S)
        overwritten.say_new()


def _lines(session: Session, name: str, every: float, once: bool, form: str, overwritten: OverwrittenFiles) -> None:
    """A screen now and then; Ctrl-C ends it like the end of the input."""
    patient = session.source.patient
    due = time.monotonic()
    with contextlib.suppress(KeyboardInterrupt):
        while not session.figures.ended:
            due += every
            _until_over(session, None if once and patient else due, overwritten)
            if session.figures.ended:
                break
            _print(session.figures.snapshot(), name, form)
            if once:
                return
    if not session.figures.error:
        _print(session.figures.snapshot(), name, form)


def _print(snapshot: Mapping[str, Any], name: str, form: str) -> None:
    if form == "jsonl":
        sys.stdout.write(json.dumps(snapshot, default=float) + "\n")
    else:
        from kdissect.cli.live.panel import VIEWS, busy, causes, cells, finding_line, head, quiet
        from kdissect.cli.printing.grid import grid

        out: list[Any] = head(snapshot, name, terminal.width())
        for view, columns in VIEWS.items():
            rows = [cells(view, line) for line in snapshot[view] if busy(view, line)]
            if rows:
                out += ["", *grid([shown.header for shown in columns], rows, terminal.width())]
            if len(rows) < len(snapshot[view]):
                out.append(quiet(len(snapshot[view]) - len(rows), "--format jsonl has them"))
        out += ["", *map(finding_line, causes(snapshot["findings"]))] if snapshot["findings"] else []
        terminal.print_plain([*out, ""])
    sys.stdout.flush()
