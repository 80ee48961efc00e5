"""The first screen: what happened in a sentence, findings under their numbers, how slow, who; then the rest, how good
the capture is, and where to go next.

A pure function from a `Summary` to lines. The sentence, the findings that matter, the first APIs and clients take at
most `PAGE` lines, if these are enough for all findings above low. Every block has its share of `LINES`; one that needs
less leaves its rest to the others, in the order in which they stand. A row is left out only where the line that says so
is shorter than what it hides. Sentences and commands wrap, tables drop columns.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from kdissect.cli.printing import blocks, words
from kdissect.cli.printing.blocks import Block
from kdissect.cli.printing.next_steps import next_steps
from kdissect.summary import Summary
from kdissect.summary.lead import lead_sentence, unread_sentence

LINES = 50
"""Most lines of the screen by default: what a tall terminal shows at once."""
PAGE = 23
"""Lines of the smallest terminal in use without the one that a pager or a prompt takes."""
LEAD_LINES = 2
"""Lines of the first sentence where consequences can be left out to fit."""
FEW, ALL_APIS = 3, 6
"""Rows of APIs and of clients that belong on the first page, and rows of APIs where there is room."""


def render(
    summary: Summary,
    target: Sequence[str],
    width: int,
    *,
    top: int | None = None,
    local: bool = False,
    filtered: bool = False,
    plain: bool = False,
) -> list[Text]:
    """The lines of the first screen, at most `LINES` unless `top` asks for that many rows a block.

    `target` is how the captures are named on the command line, quoted, for the commands that the screen proposes.
    `filtered`: only a part of what was captured was asked for. `plain`: no characters beyond ASCII.
    """
    most = LINES if top is None else top
    lead = _lead(summary, width, local, filtered)
    header = [Text(line, "bold") for line in words.wrapped(lead, width)]
    header += _header(summary, width, local, filtered)
    latencies = blocks.latencies(summary, width, most, filtered=filtered, said=lead)
    clients = blocks.clients(summary, width, most, local=local)
    steps = [line for step in next_steps(summary, target) for line in words.command_lines(step, width, 2)]
    footer = [Text("Next", "bold"), *map(Text, steps)]
    page = PAGE - len(header) - sum(one.lines(one.at_most(FEW, width), width) for one in (latencies, clients))
    happened = blocks.findings(summary, target, width, None if top is not None else max(page - 1, FEW), local)
    apis = min(max(FEW - 1, FEW + page - happened.lines(0, width)), ALL_APIS)
    made = [
        block
        for block in (
            latencies._replace(share=apis),
            clients,
            blocks.budget(summary, width),
            blocks.pace(summary, width, local=local, plain=plain),
            blocks.errors(summary, width, most),
            blocks.deliveries(summary, width, most),
            blocks.topics(summary, width, most),
            blocks.brokers(summary, width, most),
            blocks.quality(summary, width),
            blocks.problems(summary, width),
        )
        if block.head or block.rows
    ]
    if top is not None:
        rows: list[int | None] = [min(len(block.rows), top) for block in made]
    else:
        room = LINES - len(header) - len(footer) - 1
        rows = shares(made, room - happened.lines(0, width) if happened.head else room, width)
        if made and made[0].rows and rows[0] is not None:
            rows[0] = made[0].at_most(min(rows[0], apis), width)
    if happened.head:
        made.insert(0, happened)
        rows.insert(0, 0)
    lines = list(header)
    for block, shown in zip(made, rows, strict=True):
        if shown is None:
            continue
        lines += [Text(), *block.head, *(line for row in block.rows[:shown] for line in row)]
        if block.total > shown:
            lines.append(Text("  " + block.more.format(words.count(block.total - shown)), "dim"))
    return [*lines, Text(), *footer]


def _lead(summary: Summary, width: int, local: bool, filtered: bool) -> str:
    """The sentence that comes first: the worst incident, else what can be said without one."""
    said = lead_sentence(summary.findings, LEAD_LINES * width - 1, local=local) or unread_sentence(summary)
    return said or blocks.calm_sentence(summary, filtered=filtered, local=local)


def shares(blocks: Sequence[Block], room: int, width: int) -> list[int | None]:
    """Rows of each block so that all blocks, their heads and blank lines take at most `room` lines; None leaves a block
    out."""
    shown: list[int | None] = [None if block.spare else block.at_most(block.share, width) for block in blocks]

    def count_lines() -> int:
        return sum(block.lines(rows, width) for block, rows in zip(blocks, shown, strict=True) if rows is not None)

    def fewer(places: list[int]) -> bool:
        """Take a row from the block that has most beyond its least."""
        if not places:
            return False
        longest = max(places, key=lambda i: blocks[i].lines(shown[i] or 0, width) - blocks[i].least)
        shown[longest] = blocks[longest].fewer(shown[longest] or 0, width)
        return True

    while count_lines() > room and fewer([i for i, rows in enumerate(shown) if (rows or 0) > blocks[i].least]):
        pass
    for i in sorted(range(len(blocks)), key=lambda i: -blocks[i].leaves):
        if count_lines() <= room or not blocks[i].leaves:
            break
        shown[i] = None
    while count_lines() > room and fewer([i for i, rows in enumerate(shown) if rows]):
        pass
    for i, block in enumerate(blocks):
        if block.spare:
            shown[i] = block.at_most(block.share, width)
            shown[i] = shown[i] if count_lines() <= room else None
    grown = True
    while grown:
        grown = False
        for i, rows in enumerate(shown):
            more = None if rows is None or rows >= blocks[i].most else blocks[i].at_most(rows + 1, width)
            if more is not None and more > (rows or 0):
                shown[i] = more
                if count_lines() <= room:
                    grown = True
                else:
                    shown[i] = rows
    return shown


def _header(summary: Summary, width: int, local: bool, filtered: bool) -> list[Text]:
    names = ", ".join(summary.captures[:3]) + (
        f" and {len(summary.captures) - 3} more" if len(summary.captures) > 3 else ""
    )
    lines = [Text(names or "capture", no_wrap=True)]
    if summary.started_at is not None and summary.ended_at is not None:
        length = (summary.ended_at - summary.started_at).total_seconds() * 1000
        when = words.span(summary.started_at, summary.ended_at, local=local)
        said = f"{when} ({words.milliseconds(length)})"
        if lines[0].cell_len + 2 + len(said) <= width:
            lines[0].append(f"  {said}")
        else:
            lines += blocks.sentence(said, width, 0)
    sealed = not summary.exchanges and summary.protocols.get("tls", 0) > 0
    packets = ""
    if summary.packets is not None:
        size = "" if summary.bytes is None else f" ({words.size(summary.bytes)})"
        packets = words.number_of(summary.packets, "packet") + size
        packets += " in all; asked for: " if filtered else ", "  # they are not told apart by client, broker or topic
    facts = [
        words.number_of(summary.connections, "connection")
        + (
            f" ({words.count(summary.kafka_connections)} Kafka)"
            if summary.kafka_connections != summary.connections and not sealed
            else ""
        ),
        *(f"{f'? {noun}s' if sealed else words.number_of(count, noun)}"
          for noun, count in (("broker", len(summary.brokers)), ("client", len(summary.clients)),
                              ("exchange", summary.exchanges))),
    ]  # fmt: skip
    lines += blocks.sentence(packets + ", ".join(facts), width, 0)
    return lines + blocks.both_ends(summary, width)
