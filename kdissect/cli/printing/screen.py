"""The first screen: what happened first, then who, what and how slow, then how good the capture is, then where to go
next.

A pure function from a `Summary` to lines. Findings take the room that the others can spare (`accounts`). Every other
block has its share of `LINES`; one that needs less leaves its rest to the others, in the order in which they stand. A
row is left out only where the line that says so is shorter than what it hides. Sentences wrap, tables drop
columns, findings are shown whole, in a few words or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from kdissect.cli.printing import blocks, words
from kdissect.cli.printing.blocks import Block
from kdissect.cli.printing.next_steps import next_steps
from kdissect.summary import Summary

LINES = 50
"""Most lines of the screen by default: what a tall terminal shows at once."""
LEAST_FOR_FINDINGS = 9
"""Lines that findings get however much else there is to say: what went wrong matters more."""


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
    header = _header(summary, width, local)
    made = [
        block
        for block in (
            blocks.budget(summary, [] if filtered else target, width),
            blocks.latencies(summary, width, filtered=filtered, local=local, plain=plain),
            blocks.errors(summary, width),
            blocks.clients(summary, width, local=local),
            blocks.topics(summary, width),
            blocks.brokers(summary, width),
            blocks.quality(summary, width),
            blocks.problems(summary, width),
        )
        if block.head or block.rows
    ]
    steps = next_steps(summary, target)
    footer = _footer(steps)
    if top is not None:
        happened, _ = blocks.findings(summary, target, width, None, local)
        rows: list[int | None] = [min(len(block.rows), top) for block in made]
    else:
        least = sum(_least(block, width) for block in made)
        while len(steps) > 1 and len(header) + least + 1 + LEAST_FOR_FINDINGS + wrapped(footer, width) > LINES:
            del steps[-2]  # narrow terminals wrap commands; the last, which keeps everything, stays
            footer = _footer(steps)
        room = LINES - len(header) - wrapped(footer, width) - 1
        wished = sum(block.lines(block.at_most(block.share, width), width) for block in made if not block.spare)
        happened, told = blocks.findings(summary, target, width, max(room - wished, LEAST_FOR_FINDINGS), local)
        if not told:
            happened, _ = blocks.findings(summary, target, width, max(room - least, LEAST_FOR_FINDINGS), local)
        rows = shares(made, room - happened.lines(0, width) if happened.head else room, width)
    if happened.head:
        made.insert(0, happened)
        rows.insert(0, 0)
    lines = list(header)
    for block, shown in zip(made, rows, strict=True):
        if shown is None:
            continue
        lines += [Text(), *block.head, *(line for row in block.rows[:shown] for line in row)]
        if len(block.rows) > shown:
            lines.append(Text("  " + block.more.format(words.count(len(block.rows) - shown)), "dim"))
    return [*lines, Text(), *footer]


def _least(block: Block, width: int) -> int:
    """Lines that a block keeps on a full screen: none where it may leave."""
    return (
        0
        if block.leaves or block.spare
        else block.lines(block.at_most(min(block.least, len(block.rows)), width), width)
    )


def _footer(steps: Sequence[str]) -> list[Text]:
    return [Text("Next", "bold"), *(Text("  " + step) for step in steps)]


def shares(made: Sequence[Block], room: int, width: int) -> list[int | None]:
    """Rows of each block so that all blocks, their heads and blank lines take at most `room` lines; None leaves a block
    out."""
    shown: list[int | None] = [None if block.spare else block.at_most(block.share, width) for block in made]

    def taken() -> int:
        return sum(block.lines(rows, width) for block, rows in zip(made, shown, strict=True) if rows is not None)

    def fewer(places: list[int]) -> bool:
        """Take a row from the block that has most beyond its least."""
        if not places:
            return False
        longest = max(places, key=lambda i: made[i].lines(shown[i] or 0, width) - made[i].least)
        shown[longest] = made[longest].fewer(shown[longest] or 0, width)
        return True

    while taken() > room and fewer([i for i, rows in enumerate(shown) if (rows or 0) > made[i].least]):
        pass
    for i in sorted(range(len(made)), key=lambda i: -made[i].leaves):
        if taken() <= room or not made[i].leaves:
            break
        shown[i] = None
    while taken() > room and fewer([i for i, rows in enumerate(shown) if rows]):
        pass
    for i, block in enumerate(made):
        if block.spare:
            shown[i] = block.at_most(block.share, width)
            shown[i] = shown[i] if taken() <= room else None
    grown = True
    while grown:
        grown = False
        for i, rows in enumerate(shown):
            more = None if rows is None or rows >= made[i].most else made[i].at_most(rows + 1, width)
            if more is not None and more > (rows or 0):
                shown[i] = more
                if taken() <= room:
                    grown = True
                else:
                    shown[i] = rows
    return shown


def wrapped(lines: Sequence[Text], width: int) -> int:
    """Lines of a terminal that these take."""
    return sum(max(1, -(-line.cell_len // width)) for line in lines)


def _header(summary: Summary, width: int, local: bool) -> list[Text]:
    names = ", ".join(summary.captures[:3]) + (
        f" and {len(summary.captures) - 3} more" if len(summary.captures) > 3 else ""
    )
    lines = [Text(names or "capture", "bold", no_wrap=True)]
    if summary.started_at is not None and summary.ended_at is not None:
        length = (summary.ended_at - summary.started_at).total_seconds() * 1000
        when = words.span(summary.started_at, summary.ended_at, local=local)
        said = f"{when} ({words.milliseconds(length)})"
        if lines[0].cell_len + 2 + len(said) <= width:
            lines[0].append(f"  {said}", "not bold")
        else:
            lines += blocks.sentence(said, width, 0)
    sealed = not summary.exchanges and summary.protocols.get("tls", 0) > 0
    facts = [
        words.number_of(summary.packets, "packet")
        + (f" ({words.size(summary.bytes)})" if summary.bytes is not None else "")
        if summary.packets is not None
        else "",
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
    lines += blocks.sentence(", ".join(fact for fact in facts if fact), width, 0)
    return lines + blocks.both_ends(summary, width)
