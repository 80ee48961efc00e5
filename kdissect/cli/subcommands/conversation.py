"""`stream`: a conversation in order of time, a line an exchange with its gist; a few of them as a drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from kdissect.cli.opening import open_capture
from kdissect.cli.options import capture_arguments, time_options
from kdissect.cli.printing import terminal, words
from kdissect.cli.printing.grid import Header, fit, grid
from kdissect.escaping import visible
from kdissect.problems import UsageError

if TYPE_CHECKING:
    from datetime import datetime

    from rich.text import Text

    from kdissect.engine.capture import Capture

COLUMNS = (
    "exchange_id", "connection_id", "client_id", "broker", "api", "api_version", "status", "error", "hold",
    "request_first_at", "response_last_at", "latency_ms", "queued_ms", "broker_ms", "request_transfer_ms",
    "response_transfer_ms", "network_ms", "replication_ms",
)  # fmt: skip
"""Of `exchanges`, as far as it has them."""
TRANSACTIONAL = {
    "transaction_steps": ["exchange_id", "step", "producer_id"], "producer_ids": ["exchange_id"],
    "produces": ["exchange_id"],
}  # fmt: skip
"""Tables whose rows name transactional ids, and what is read of them."""
DRAWN = 8
"""Exchanges that are drawn as a sequence unless said otherwise."""
NAMED = 8
"""Clients that a message names."""
LANE = 34
"""Cells of the lane between client and broker."""


@click.command(short_help="A conversation: one line an exchange, with its gist.")
@capture_arguments()
@click.option("--client", multiple=True, metavar="ID|IP[:PORT]", help="Of this client; may be repeated.")
@click.option("--group", metavar="NAME", help="Of the members of this consumer group.")
@click.option("--transactional-id", "transactional", metavar="ID", help="The transactions of this transactional id.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many exchanges.")
@click.option("--draw/--no-draw", default=None, help="As a drawing: client, network, broker; of a few, if not said.")
@time_options
def stream(
    captures: tuple[str, ...], demo: bool, client: tuple[str, ...], group: str | None, transactional: str | None,
    limit: int | None, draw: bool | None, local: bool, **settings: Any,
) -> None:  # fmt: skip
    """Print what was said, in order of time: kdissect stream CAPTURE CONNECTION, --client, --group, --transactional-id.

    Each line says when, to whom, which API, what it was about, how long it took and whose time that was. CONNECTION is
    an id, an exchange's id, or the beginning of one. A transactional id has its transactions first, then the exchanges
    of all who took part: its producers, the coordinator, and brokers that were sent markers.
    """
    from rich.text import Text

    words_given = list(captures)
    connection = None
    if not client and group is None and transactional is None:
        if not words_given or (len(words_given) < 2 and not demo):
            raise click.UsageError("say whose conversation: a connection's id, --client, --group or --transactional-id")
        connection = words_given.pop().partition(":")[0].lower()
    opened = open_capture(words_given, demo=demo, client=client, **settings)
    rows, gists = conversation(opened, connection, group, transactional)
    if not rows:
        raise UsageError(_none_found(capture_clients(opened), client, connection, group))
    shown = rows if limit is None else rows[:limit]
    drawn = len(shown) <= DRAWN if draw is None else draw
    show = drawing if drawn else listing
    lines = show(shown, gists, terminal.row_width(), local=local, short=terminal.short_rows())
    if transactional is not None:
        lines = [*transactions(opened, transactional, terminal.row_width(), local=local), Text(), *lines]
    if len(rows) > len(shown):
        lines.append(Text(f"{words.number_of(len(rows) - len(shown), 'exchange')} more: --limit N", "dim"))
    terminal.page(lines)


def conversation(
    capture: Capture, connection: str | None, group: str | None, transactional: str | None = None
) -> tuple[list[dict[str, Any]], Mapping[str, str]]:
    """Exchanges in order of time, and what each was about. Raises UsageError for no id and for one that fits several
    connections."""
    from kdissect.analysis.gist import gists
    from kdissect.tables.declaration import SCHEMAS
    from kdissect.tables.declaration.readers import GISTS

    names = [name for name in COLUMNS if name in SCHEMAS["exchanges"].names]
    where = None
    if connection is not None:
        if not connection or len(connection) > 16 or set(connection) - set("0123456789abcdef"):
            raise UsageError(f"{connection!r} is no connection id, such as 3f2a09c1d4e5b678 or the beginning of one")
        where = f"exchange_id like '{connection}%'"
    elif group is not None:
        quoted = group.replace("'", "''")
        ids = capture.table("connections", ["connection_id"], f"group_id = '{quoted}'")["connection_id"].to_pylist()
        if not ids:
            raise UsageError(f"no connection of this capture is of group {group!r}")
        where = " or ".join(f"exchange_id like '{one}%'" for one in ids)
    elif transactional is not None:
        ids = find_transactional_exchanges(capture, transactional)
        if not ids:
            raise UsageError(_no_transactions(capture, transactional))
        where = f"exchange_id in ({', '.join(map(repr, ids))})"
    asked = {"exchanges": names, **{name: list(columns) for name, columns in GISTS.tables.items()}}
    tables = capture.tables(asked, None if where is None else dict.fromkeys(asked, where))
    rows = tables["exchanges"].to_pylist()
    found = sorted({row["connection_id"] for row in rows})
    if connection is not None and len(found) > 1:
        raise UsageError(f"{connection} fits {len(found)} connections: {', '.join(found[:4])}")
    return rows, gists(tables)


def find_transactional_exchanges(capture: Capture, transactional: str) -> list[str]:
    """Ids of the exchanges that name a transactional id, or write markers for a producer id of it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    tables = capture.tables({name: [*columns, "transactional_id"] for name, columns in TRANSACTIONAL.items()})
    steps = tables["transaction_steps"]
    named = {
        name: pc.equal(table["transactional_id"].cast(pa.string()), transactional) for name, table in tables.items()
    }
    producers = pc.unique(steps["producer_id"].filter(named["transaction_steps"]))
    markers = pc.equal(steps["step"].cast(pa.string()), "markers")
    its_markers = pc.and_(markers, pc.is_in(steps["producer_id"], value_set=producers.drop_null()))
    named["transaction_steps"] = pc.or_(pc.fill_null(named["transaction_steps"], False), its_markers)
    return sorted(
        {one for name, table in tables.items() for one in table.filter(named[name])["exchange_id"].to_pylist()}
    )


def transactions(capture: Capture, transactional: str, width: int, *, local: bool = False) -> list[Text]:
    """A line for each transaction of a transactional id, in order of time."""
    quoted = transactional.replace("'", "''")
    rows = capture.table("transactions", None, f"transactional_id = '{quoted}'").to_pylist()
    headers = [
        Header("began", style="dim"), Header("outcome"), Header("client", drop=3), Header("epoch", right=True, drop=3),
        Header("open", right=True), Header("idle", right=True, drop=1), Header("end", right=True, drop=2),
        Header("markers", right=True, drop=2), Header("batches", right=True, drop=4), Header("records", right=True),
        Header("topics"),
    ]  # fmt: skip
    cells = [
        [
            _at(row["began_at"], local), row["outcome"], _name(row["client_id"]), _count(row["producer_epoch"]),
            *(words.milliseconds(row[name]) for name in ("open_ms", "idle_ms", "end_ms", "markers_ms")),
            _count(row["batches"]), _count(row["records"]), visible(", ".join(row["topics"] or [])),
        ]
        for row in rows
    ]  # fmt: skip
    return grid(headers, cells, width) if rows else [Text(f"No transaction of {visible(transactional)} began.")]


def _count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _no_transactions(capture: Capture, transactional: str) -> str:
    """Why there is nothing of a transactional id, and which ones there are."""
    rows = capture.table("transactions", ["transactional_id"])["transactional_id"].to_pylist()
    known = sorted({str(name) for name in rows if name is not None})
    some = ", ".join(map(visible, known[:NAMED])) + (f" and {len(known) - NAMED} more" if len(known) > NAMED else "")
    named = f" (transactional ids: {some})" if known else ", and no transaction"
    return f"this capture has no exchange of transactional id {transactional!r}{named}"


def capture_clients(capture: Capture) -> list[str]:
    """The client ids of a capture, in order."""
    names = capture.table("connections", ["client_id"], "is_kafka")["client_id"].to_pylist()
    return sorted({str(name) for name in names if name is not None})


def _none_found(clients: Sequence[str], client: Sequence[str], connection: str | None, group: str | None) -> str:
    """Why there is no conversation, and which clients there are."""
    if connection is not None:
        asked = f"connection {connection!r} has"
    else:
        asked = f"group {group!r} has" if group is not None else f"client {', '.join(map(repr, client))} has"
    some = ", ".join(map(visible, clients[:NAMED])) + (
        f" and {len(clients) - NAMED} more" if len(clients) > NAMED else ""
    )
    return f"{asked} no exchange in this capture" + (f" (clients: {some})" if clients else "")


def listing(
    rows: Sequence[Mapping[str, Any]], gists: Mapping[str, str], width: int, *, local: bool = False, short: bool = True
) -> list[Text]:
    """A line an exchange; `short`: of its id as much as eyes need."""
    from rich.text import Text

    from kdissect.analysis.gist import whose

    several = len({(row["client_id"], row["broker"]) for row in rows}) > 1
    room = max(24, width - (96 if several else 76))
    headers = [
        Header("at", style="dim"), *([Header("client"), Header("broker")] if several else []),
        Header("API", style="cyan"), Header("took", right=True), Header("whose time", drop=1),
        Header("error", style="red"), Header("exchange", style="dim", drop=2), Header("what"),
    ]  # fmt: skip
    cells = [
        [
            _at(row["request_first_at"], local),
            *([_name(row["client_id"]), row["broker"] or "?"] if several else []),
            _api(row),
            words.milliseconds(row["latency_ms"]),
            whose(row),
            _outcome(row),
            _id(row, short),
            fit(gists.get(row["exchange_id"], ""), room),
        ]
        for row in rows
    ]
    title = [] if several else [Text(f"{_name(rows[0]['client_id'])} with broker {rows[0]['broker'] or '?'}", "bold")]
    return [*title, *grid(headers, cells, width)]


def drawing(
    rows: Sequence[Mapping[str, Any]], gists: Mapping[str, str], width: int, *, local: bool = False, short: bool = True
) -> list[Text]:
    """Client, network and broker side by side: an arrow for each message, what took the time between them; `short`: of
    an exchange's id as much as eyes need."""
    from rich.text import Text

    from kdissect.analysis.gist import whose

    lane = max(20, min(LANE, width - 46))
    if not short:
        lane = max(lane, *(len(text) + 8 for row in rows for text in (_api(row), _outcome(row))))
    lines = [Text(f"{'':<12}  {'client':<{lane - 2}}broker", "bold")]
    events: list[tuple[Any, int, Text]] = []
    for n, row in enumerate(rows):
        gist = gists.get(row["exchange_id"], "")
        label = fit(_api(row), lane - 8)
        ask = f"|-- {label} " + "-" * (lane - 7 - len(label)) + ">|"
        who = f"  {_id(row, short)}  {_name(row['client_id'])} to {row['broker'] or '?'}"
        if row["request_first_at"] is not None:
            what = fit(f"{who}  {gist}" if gist else who, max(10, width - 16 - lane))
            events.append((row["request_first_at"], n, Text.assemble((_at(row["request_first_at"], local), "dim"), "  ",
                           (ask, "cyan"), what)))  # fmt: skip
        if row["response_last_at"] is not None:
            outcome = fit(_outcome(row) or "ok", lane - 8)
            answer = "|<" + "-" * (lane - 6 - len(outcome)) + f" {outcome} --|"
            owner = whose(row)
            took = f"  {_id(row, short)}  {words.milliseconds(row['latency_ms'])}" + (f": {owner}" if owner else "")
            events.append((row["response_last_at"], n, Text.assemble((_at(row["response_last_at"], local), "dim"), "  ",
                           (answer, "red" if _outcome(row) else "green"), took)))  # fmt: skip
    return [*lines, *(line for _, _, line in sorted(events, key=lambda event: event[:2]))]


def _api(row: Mapping[str, Any]) -> str:
    version = "" if row["api_version"] is None else f" v{row['api_version']}"
    return f"{row['api'] or '(unknown)'}{version}"


def _outcome(row: Mapping[str, Any]) -> str:
    if row["error"] is not None:
        return visible(str(row["error"]))
    return "" if row["status"] in ("ok", "no_response") else str(row["status"]).replace("_", " ")


def _name(client_id: str | None) -> str:
    return "(none)" if client_id is None else visible(client_id)


def _id(row: Mapping[str, Any], short: bool) -> str:
    connection, _, ordinal = str(row["exchange_id"]).partition(":")
    return f"{connection[:6] if short else connection}:{ordinal}"


def _at(time: datetime | None, local: bool) -> str:
    return "?" if time is None else words.time_of_day(time, local=local)
