"""`otlp`: exchanges as OpenTelemetry spans and metrics, to a receiver or into a file."""

from __future__ import annotations

import sys
from typing import Any

import click

from kdissect.cli.opening import open_capture
from kdissect.cli.options import (
    URL_MARK,
    jobs_option,
    memory_option,
    reading_options,
    receiver_of,
    selection_options,
    timings_option,
)
from kdissect.cli.printing import terminal

EXAMPLE = "--to http://localhost:4318"


@click.command(short_help="Exchanges as OpenTelemetry spans, to a receiver or a file.")
@click.argument("captures", nargs=-1, type=click.Path(), metavar="CAPTURE...")
@click.option("--demo", is_flag=True, help="Use the capture that ships with kdissect.")
@click.option(
    "--to",
    "places",
    multiple=True,
    metavar="URL|TIME",
    help="Send to this OTLP receiver (http://localhost:4318); a time leaves out what came after.",
)
@click.option(
    "-o", "--output", type=click.Path(), metavar="FILE", help="Write a JSON line a request there (- for stdout)."
)
@click.option("--where", metavar="FILTER", help='Only exchanges for which this holds, such as "latency_ms > 100".')
@click.option(
    "--links/--no-links",
    default=True,
    help="Join spans with the traces in record headers and with deliveries, or leave record batches unread.",
)
@selection_options
@reading_options
@timings_option
@jobs_option
@memory_option
def otlp(
    captures: tuple[str, ...], demo: bool, places: tuple[str, ...], output: str | None, where: str | None, links: bool,
    **settings: Any,
) -> None:  # fmt: skip
    """Send each exchange as a span to an OpenTelemetry receiver by OTLP over HTTP, or write the spans to a file.

    Below an exchange's span are spans of the network's, the broker's and the followers' time and of the agreed wait.
    Requests are part of the traces in their records' headers, and fetches link to them. The metric
    messaging.client.operation.duration follows. Headers, certificates and timeouts come from the variables
    OTEL_EXPORTER_OTLP_*.
    """
    url = receiver_of(places)
    if (url is None) == (output is None):
        raise click.UsageError(f"say where spans go, by one of {EXAMPLE} and -o FILE (- for standard output)")
    ends = [text for text in places if URL_MARK not in text]
    if len(ends) > 1:
        raise click.UsageError("--to takes one time")
    from kdissect import otlp as sender

    sender.ready()
    capture: Any = open_capture(captures, demo=demo, end=ends[0] if ends else None, **settings)
    if url is not None:
        sent = sender.send(capture, url, where=where, links=links)
        terminal.say(f"sent {_counted(sent)} to {url}")
    else:
        target: Any = sys.stdout.buffer if output == "-" else output
        sent = sender.write(capture, target, where=where, links=links)
        terminal.say(f"wrote {_counted(sent)}" + ("" if output == "-" else f" to {output}"))


def _counted(sent: Any) -> str:
    return f"{sent.spans:,} spans of {sent.exchanges:,} exchanges in {sent.requests:,} requests"
