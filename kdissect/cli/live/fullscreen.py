"""The live view on a whole terminal: tables that sort and filter, one client's exchanges, findings, no mouse needed.

The session reads in a thread of its own; the screen asks it for a snapshot `REFRESH_S` after the last one. Every text
of a capture passes `visible`, and none is read as markup.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Footer, Input, Static

from kdissect.cli.live.panel import DELIVERIES, VIEWS, NewsLine, busy, causes, cells, explainable, head, quiet, wrapped
from kdissect.cli.printing.grid import fit, grid
from kdissect.cli.printing.words import milliseconds, size
from kdissect.escaping import visible
from kdissect.problems import KdissectError

if TYPE_CHECKING:
    from textual.events import Resize

    from kdissect.live.lookout import Explainer
    from kdissect.live.watched_source import Session

REFRESH_S = 0.5
FINDINGS = 4
"""Lines for findings below the tables, on a screen of 24 lines; more on a larger one."""
RECENT_LINES = 12
"""Lines for the exchanges of a client, if there are findings that need more than theirs."""
NAMES = tuple(VIEWS)
HELP = """\
 b c t a   brokers, clients, topics, APIs
 d         deliveries by topic and group (top --deliveries)
 Tab       the next of them
 up down   choose a line
 Enter     a client's exchanges; of a finding (f): why; Esc goes back
 s  S      sort by the next, the last column
 r         the other way round
 /         show names with this text; Esc shows all again
 p  space  pause and go on
 f         findings over the whole screen
 w         write the last seconds as a capture
 q         quit
"""


class Help(ModalScreen[None]):
    """The list of keys."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q,enter", "dismiss", "back")]

    def compose(self) -> ComposeResult:
        """The text."""
        yield Static(Text(HELP), id="help")


class Why(ModalScreen[None]):
    """Why a finding is there, as soon as that is known."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "dismiss", "back")]
    POLL_S = 0.1
    """How often the other process is asked."""

    def __init__(self, explainer: Explainer) -> None:
        super().__init__()
        self._explainer = explainer

    def compose(self) -> ComposeResult:
        """The text, which scrolls."""
        with VerticalScroll():
            yield Static("Looking at the packets of the last seconds ..", id="why")

    def on_mount(self) -> None:
        """Begin to wait."""
        self.query_one(VerticalScroll).focus()
        self._timer = self.set_interval(self.POLL_S, self._ask)

    def on_unmount(self) -> None:
        """The screen was closed."""
        self._explainer.close()

    def _ask(self) -> None:
        text = self._explainer.text()
        if text is not None:
            self._timer.stop()
            gone = "The packets that it came from are no longer kept (--ring TIME keeps more)."
            self.query_one("#why", Static).update(Text.from_ansi(text) if text else Text(gone))


class Screen(App[None]):
    """The screen. `name`: what is watched."""

    CSS = """
    #head { height: 2; } #table { height: 1fr; } #findings { height: auto; }
    #ask { height: 1; border: none; display: none; }
    Help { align: center middle; } #help { width: auto; height: auto; border: round white; padding: 0 1; }
    Why { align: center middle; } Why VerticalScroll { width: 100%; height: 100%; background: $background; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("b", "view('brokers')", "brokers", show=False),
        Binding("c", "view('clients')", "clients", show=False),
        Binding("t", "view('topics')", "topics", show=False),
        Binding("a", "view('apis')", "APIs", show=False),
        Binding("d", "view('deliveries')", "deliveries", show=False),
        Binding("tab", "next", "next table", priority=True),
        Binding("s", "sort(1)", "sort"),
        Binding("S", "sort(-1)", "sort", show=False),
        Binding("r", "reverse", "reverse", show=False),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("enter", "drill", "open", show=True),
        Binding("escape", "out", "back", show=False),
        Binding("p,space", "pause", "pause"),
        Binding("f", "findings", "findings"),
        Binding("w", "write", "write"),
        Binding("up", "move(-1)", "", show=False),
        Binding("down", "move(1)", "", show=False),
        Binding("q,ctrl+c", "quit", "quit"),
    ]
    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = None  # keys are ours until somebody asks for the input line

    def __init__(self, session: Session, name: str) -> None:
        super().__init__(ansi_color=True)
        self._session = session
        self._named = name
        self.shown = "brokers"
        """Which of VIEWS."""
        self.sorted: dict[str, tuple[int, bool]] = {**dict.fromkeys(NAMES, (1, True)), DELIVERIES: (2, True)}
        """By view, the column that it is sorted by, and whether the largest comes first."""
        self.wanted = ""
        """Text that names must have."""
        self.client: str | None = None
        """Whose exchanges are shown instead of a table."""
        self.paused = False
        self.only_findings = False
        self.chosen = 0
        """The line of the table, or the finding over the whole screen, that the keys are about."""
        self.asks = ""
        """What the input line is for: `filter` or `write`."""
        self.said = ""
        self._snapshot: dict[str, Any] = session.figures.snapshot()

    def compose(self) -> ComposeResult:
        """The lines, from top to bottom."""
        yield Static(id="head")
        yield Static(id="table")
        yield Static(id="findings")
        yield Input(id="ask", compact=True)
        yield Footer(compact=True)

    def on_mount(self) -> None:
        """Begin to show."""
        self.set_focus(None)
        self.set_interval(REFRESH_S, self._refresh)
        self._refresh()

    def on_resize(self, event: Resize) -> None:
        """Another size of the terminal."""
        self._draw()

    # ---- drawing

    def _refresh(self) -> None:
        if not self.paused:
            self._snapshot = self._session.figures.snapshot()
        self._draw()

    def _draw(self) -> None:
        width, height = self.size
        if not width or not self.is_running:
            return
        snapshot = self._snapshot
        lines = [Text(fit(visible(line), width), no_wrap=True) for line in head(snapshot, self._named, width)]
        marks = " PAUSED" * self.paused + f" /{self.wanted}" * bool(self.wanted) + f" {self.said}" * bool(self.said)
        if marks:
            lines[1] = Text(fit(visible(marks.strip() + "  " + lines[1].plain), width), "reverse")
        bad = snapshot["standing_still"] or snapshot["gone"] or snapshot["left_out_segments"]
        lines[1].stylize("bold red" if bad else "")
        self.query_one("#head", Static).update(Text("\n").join(lines))
        room = height - 3 - bool(self.asks)
        table = self.query_one("#table", Static)
        table.display = not self.only_findings  # a table that is displayed takes a line, even without text
        free = max(FINDINGS, height // 5, room - self._table_lines())
        most = room if self.only_findings else min(free, room - 1)
        news = [self._news_line(line, width) for line in self._news(width, most)]
        self.query_one("#findings", Static).update(Text("\n").join(news))
        table.update(Text("\n").join([] if self.only_findings else self._body(width, room - len(news))))

    def _news(self, width: int, room: int) -> list[NewsLine]:
        """Lines of findings; over the whole screen those around the chosen one."""
        findings = self.findings()
        if not self.only_findings:
            return wrapped(findings, width, room)
        self.chosen = max(0, min(self.chosen, len(findings) - 1))
        lines = wrapped(findings, width, max(room, 1000 * len(findings)))
        places = [n for n, line in enumerate(lines) if line.number == self.chosen]
        first = max(0, places[-1] + 1 - room) if places else 0
        return lines[first : first + room]

    def _news_line(self, line: NewsLine, width: int) -> Text:
        shown = Text(line.text, "red" if line.severity == "high" else "", no_wrap=True)
        if self.only_findings and line.number == self.chosen:
            shown.pad_right(width - shown.cell_len)
            shown.stylize("reverse")
        return shown

    def findings(self) -> list[Mapping[str, Any]]:
        """The findings that are listed: one a cause, worst first; over the whole screen all, the latest first."""
        every = self._snapshot["findings"]
        latest_first = sorted(every, key=lambda one: one["at"] or "", reverse=True)
        return latest_first if self.only_findings else causes(every)

    def _body(self, width: int, room: int) -> list[Text]:
        if self.client is not None:
            return self._stream(width, room)
        columns = VIEWS[self.shown]
        rows = self.rows()
        self.chosen = max(0, min(self.chosen, len(rows) - 1))
        first = max(0, self.chosen - (room - 2))
        kept = rows[first : first + max(0, room - 1)]
        lines = grid([shown.header for shown in columns], [cells(self.shown, row) for row in kept], width)
        key = columns[self.sorted[self.shown][0]].header.title
        lines[0].highlight_words([key], "bold underline")
        for n, row in enumerate(kept, 1):
            if row.get("standing_still") or row.get("gone"):
                lines[n].stylize("bold red")
            if first + n - 1 == self.chosen:
                lines[n].pad_right(width - lines[n].cell_len)
                lines[n].stylize("reverse")
        if self._quiet() and len(lines) < room:
            lines.append(Text(fit(quiet(self._quiet(), "/ shows them"), width), "dim"))
        return lines

    def _table_lines(self) -> int:
        """Lines that the table takes, with its titles and the line that says how many names are quiet."""
        if self.client is not None:
            return RECENT_LINES
        return 1 + len(self.rows()) + bool(self._quiet())

    def _quiet(self) -> int:
        """Names of the table that are not shown because they are quiet."""
        return 0 if self.wanted else sum(not busy(self.shown, row) for row in self._snapshot[self.shown])

    def rows(self) -> list[Mapping[str, Any]]:
        """The lines of the table that is shown, in their order. Names that are quiet are only shown where somebody
        looks for them, but for brokers."""
        column, down = self.sorted[self.shown]
        key = VIEWS[self.shown][column].key
        rows = [row for row in self._snapshot[self.shown] if self.wanted.lower() in row["name"].lower()]
        rows = [row for row in rows if self.wanted or busy(self.shown, row)]
        known = [row for row in rows if row.get(key) is not None]
        known.sort(key=lambda row: row[key], reverse=down)
        return known + [row for row in rows if row.get(key) is None]

    def _stream(self, width: int, room: int) -> list[Text]:
        """The latest exchanges of one client, the newest first."""
        from kdissect.cli.printing.grid import Header

        titles = ("Time", "API", "Broker", "Status", "latency", "broker", "network", "queued", "Hold", "asked", "got")
        drops = (0, 0, 2, 0, 0, 1, 5, 6, 3, 7, 4)
        headers = [
            Header(title, right=title[0].islower(), drop=drop) for title, drop in zip(titles, drops, strict=True)
        ]
        rows: list[list[str]] = []
        for row in reversed(self._session.figures.recent(self.client)):
            if len(rows) >= room - 2:
                break
            at: datetime | None = row["request_first_at"]
            rows.append([
                f"{at:%H:%M:%S.%f}"[:-3] if at else "-", f"{row['api']} v{row['api_version']}", row["broker"] or "-",
                row["error"] or row["status"],
                *(milliseconds(row[part]) for part in ("latency_ms", "broker_ms", "network_ms", "queued_ms")),
                row["hold"] or "", size(row["request_bytes"]), size(row["response_bytes"]),
            ])  # fmt: skip
        title = Text(fit(visible(f"Client {self.client}: the latest exchanges; Esc goes back"), width), "bold")
        return [title, *grid(headers, rows, width)]

    # ---- keys

    def action_view(self, name: str) -> None:
        """Another table."""
        if name == DELIVERIES and self._session.figures.deliveries is None:
            self.said = "deliveries are counted with --deliveries"
            self._draw()
            return
        self.shown, self.client, self.chosen, self.only_findings = name, None, 0, False
        self._draw()

    def action_next(self) -> None:
        """The next table."""
        names = [name for name in NAMES if name != DELIVERIES or self._session.figures.deliveries is not None]
        self.action_view(names[(names.index(self.shown) + 1) % len(names)])

    def action_sort(self, step: int) -> None:
        """By another column."""
        column, _ = self.sorted[self.shown]
        column = (column + step) % len(VIEWS[self.shown])
        self.sorted[self.shown] = (column, column > 0)
        self._draw()

    def action_reverse(self) -> None:
        """The other way round."""
        column, down = self.sorted[self.shown]
        self.sorted[self.shown] = (column, not down)
        self._draw()

    def action_move(self, step: int) -> None:
        """Choose another line."""
        self.chosen += step
        self._draw()

    def action_drill(self) -> None:
        """The exchanges of the client that is chosen; of a finding, why it is there."""
        if self.only_findings:
            self._why()
        elif self.shown == "clients" and self.client is None and self.rows():
            self.client = self.rows()[self.chosen]["name"]
        elif self.shown != "clients":
            self.said = "choose a client: c, then Enter"
        self._draw()

    def _why(self) -> None:
        """Open the explanation of the chosen finding."""
        findings = self.findings()
        row = explainable(findings[self.chosen], self.chosen + 1, self._snapshot["at"]) if findings else None
        explainer = None if row is None else self._session.explain(row, self.size.width)
        if explainer is None:
            self.said = "nothing here has an explanation"
            self._draw()
        else:
            self.push_screen(Why(explainer))

    def action_out(self) -> None:
        """Back to the view before."""
        if self.only_findings:
            self.only_findings = False
        elif self.client is not None:
            self.client = None
        else:
            self.wanted = ""
        self.said = ""
        self._draw()

    def action_pause(self) -> None:
        """Hold what is shown; reading goes on."""
        self.paused = not self.paused
        self._refresh()

    def action_findings(self) -> None:
        """Findings over the whole screen, and back."""
        self.only_findings, self.chosen = not self.only_findings, 0
        self._draw()

    def action_help(self) -> None:
        """The list of keys."""
        self.push_screen(Help())

    def action_filter(self) -> None:
        """Ask for a text."""
        self._ask("filter", self.wanted, "names with")

    def action_write(self) -> None:
        """Ask for a file."""
        now = self._snapshot["at"] or ""
        named = "kdissect-" + "".join(one for one in now[:19] if one.isdigit()) + ".pcap"
        self._ask("write", named, "file")

    def _ask(self, question: str, value: str, placeholder: str) -> None:
        self.asks = question
        line = self.query_one(Input)
        line.placeholder, line.value, line.display = placeholder, value, True
        line.focus()
        self._draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """The answer."""
        value = event.value.strip()
        if self.asks == "filter":
            self.wanted, self.chosen = value, 0
        elif value:
            self._write(value)
        self._close_line()

    def on_key(self, event: Any) -> None:
        """Esc leaves the input line."""
        if event.key == "escape" and self.asks:
            event.stop()
            self._close_line()

    def _close_line(self) -> None:
        self.asks = ""
        self.query_one(Input).display = False
        self.set_focus(None)
        self._draw()

    def _write(self, target: str) -> None:
        ring = self._session.ring
        try:
            packets = self._session.save(target, 0.0 if ring is None else ring.seconds)
        except KdissectError as error:
            self.said = str(error)
        else:
            self.said = f"{packets:,} packets written to {target}"
