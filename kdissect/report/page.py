"""The page: one HTML file with its script, style, charts' library and rows inside, which asks no network for anything.

Text from a capture reaches the page in two ways only: through the template, which escapes it, and as JSON in
an element that no browser executes. That JSON and the charts' library are compressed (zlib, RFC 1950, in base64): the
page's script unpacks both, which makes the file half as large. A content security policy allows exactly two scripts,
the page's own and the library (by their hashes), no evaluation of text, and no request to anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from importlib.util import find_spec
from typing import Any

import pyarrow as pa

from kdissect.escaping import visible
from kdissect.installed_copy import install_command
from kdissect.problems import UsageError
from kdissect.report.charts import CHARTS
from kdissect.report.figures import Explain, Report, report
from kdissect.report.page_size import MEASURES, MOST_BYTES, fitted
from kdissect.summary.lead import lead_sentence, unread_sentence

MATRIX_CLIENTS, MATRIX_APIS = 60, 40
"""Rows and columns of the version matrix: what a reader scrolls through. The CSV has all."""
DIGITS = 4
"""Of the digits behind a millisecond's point that JSON keeps: captures are of microseconds at best."""
UNKNOWN = "(unknown)"
WORTH_PACKING = 30
"""Rows from which a column that repeats itself is packed."""


def ready() -> None:
    """Raises UsageError where the packages that a page needs are not installed: before a long capture is read."""
    from kdissect.report.charts_library import is_available  # which is a program, too: no import of it stands above

    if find_spec("jinja2") is None or not is_available():
        raise UsageError(f"the HTML report needs more packages: {install_command('report')}")


def document(tables: Mapping[str, pa.Table], target: str, explain: Explain | None = None) -> bytes:
    """The page made of whole tables of `figures.READ`. `target`: how its commands name the captures. `explain`: gives
    the bytes of exchanges that findings and lists lead to (`exchange_bytes.bytes_of`), by exchange id."""
    return render(report(tables, target, explain)).encode()


def render(report: Report) -> str:
    """The page as text, of MOST_BYTES at most: where everything takes more, less is shown."""
    page = _page(report)
    for measure in MEASURES:
        if len(page.encode()) <= MOST_BYTES:
            break
        page = _page(fitted(report, measure))
    return page


def _page(report: Report) -> str:
    import jinja2

    from kdissect.report.charts_library import charts_library

    island = {name: _columns(figure.table) for name, figure in report.figures.items()}
    unread = unread_sentence(report.summary)
    library, script = charts_library(), _asset("time_figure.js") + _asset("report.js")
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.PackageLoader("kdissect.report", "assets"),
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters.update(number=number, moment=moment, size=size, milliseconds=milliseconds, compact=_pair)
    return environment.get_template("report.html.j2").render(
        report=report,
        summary=report.summary,
        figures=report.figures,
        matrix=_matrix(report.figures["versions"].table),
        island=_packed_text(_json({"figures": island, "charts": CHARTS, "bytes": report.bytes})),
        library=_packed_text(library),
        script=_safe(script),
        style=_safe(_asset("report.css")),
        policy=_policy([library, script]),
        made=datetime.now(UTC),
        lead=lead_sentence(report.summary.findings) or unread,
        unread=unread,
    )


def _safe(text: str) -> Any:
    import markupsafe

    return markupsafe.Markup(text)  # ours, or JSON by `_json`


@cache
def _asset(name: str) -> str:
    return resources.files("kdissect.report").joinpath("assets", name).read_text("utf-8")


def _packed_text(text: str) -> str:
    """Compressed, in base64: nothing in it means anything to HTML."""
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _policy(scripts: Sequence[str]) -> str:
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )


def _pair(pair: Sequence[str | None]) -> str:
    """A client and an API as the page's script names a cell of the version matrix (JSON.stringify)."""
    shown = [None if one is None else visible(one) for one in pair]
    return json.dumps(shown, separators=(",", ":"), ensure_ascii=False)


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=True)


def _columns(table: pa.Table) -> dict[str, Any]:
    """A table by columns: names, kinds (time, number, flag, text), values. Times are microseconds since the epoch."""
    kinds, values = [], []
    for name in table.column_names:
        column = table[name]
        if pa.types.is_timestamp(column.type):
            kinds.append("time")
            values.append(column.cast(pa.int64()).to_pylist())
        elif pa.types.is_floating(column.type):
            kinds.append("number")
            values.append([None if v is None else _short(v) for v in column.to_pylist()])
        elif pa.types.is_list(column.type):
            kinds.append("text")
            joined = [None if v is None else ", ".join(str(one) for one in v) for v in column.to_pylist()]
            values.append([None if v is None else visible(v) for v in joined])
        else:
            number_like = pa.types.is_integer(column.type)
            kinds.append("number" if number_like else "flag" if pa.types.is_boolean(column.type) else "text")
            values.append([visible(v) if isinstance(v, str) else v for v in column.to_pylist()])
    return {"names": table.column_names, "kinds": kinds, "values": [_packed(column) for column in values]}


def _packed(values: list[Any]) -> Any:
    """A column whose values repeat as its distinct ones and their places: a third of the size, which script unpacks."""
    words = dict.fromkeys(values)
    if len(words) * 3 > len(values) or len(values) < WORTH_PACKING:
        return values
    place = {word: i for i, word in enumerate(words)}
    return {"of": list(words), "at": [place[value] for value in values]}


def _short(value: float) -> float | int:
    rounded = round(value, DIGITS)
    return int(rounded) if rounded == int(rounded) else rounded


@dataclass(frozen=True, slots=True)
class Matrix:
    """Clients by APIs: `cells[client][api]` is the versions used."""

    apis: list[str]
    clients: list[str | None]
    cells: Mapping[str | None, Mapping[str, Cell]]
    left_out: str


@dataclass(frozen=True, slots=True)
class Cell:
    """Versions of one API that one client used."""

    text: str
    exchanges: int
    several: bool


def _matrix(table: pa.Table) -> Matrix:
    found: dict[str | None, dict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    by_api: dict[str, int] = defaultdict(int)
    by_client: dict[str | None, int] = defaultdict(int)
    for row in table.to_pylist():
        api = row["api"] if row["api"] is not None else UNKNOWN
        found[row["client_id"]][api].append((row["api_version"], row["exchanges"]))
        by_api[api] += row["exchanges"]
        by_client[row["client_id"]] += row["exchanges"]
    apis = sorted(by_api, key=lambda name: (-by_api[name], name))
    clients = sorted(by_client, key=lambda name: (-by_client[name], name or ""))
    cells = {
        client: {
            api: Cell(_ranges([v for v, _ in used]), sum(n for _, n in used), len(used) > 1) for api, used in of.items()
        }
        for client, of in found.items()
    }
    left = max(0, len(clients) - MATRIX_CLIENTS), max(0, len(apis) - MATRIX_APIS)
    left_out = f"{left[0]} clients and {left[1]} APIs with fewer exchanges are in the CSV only." if any(left) else ""
    return Matrix(apis[:MATRIX_APIS], clients[:MATRIX_CLIENTS], cells, left_out)


def _ranges(versions: list[int]) -> str:
    """Versions in short: 4, 9-12."""
    runs: list[list[int]] = []
    for version in sorted(versions):
        if runs and runs[-1][1] == version - 1:
            runs[-1][1] = version
        else:
            runs.append([version, version])
    return ", ".join(str(a) if a == b else f"{a}\u2013{b}" for a, b in runs)


def number(value: float | None) -> str:
    """A number for a table: separators, three significant digits below a thousand; nothing for null."""
    if value is None:
        return ""
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1 else f"{value:.3f}".rstrip("0").rstrip(".")


def moment(value: datetime | None) -> str:
    """A time in UTC, to the millisecond."""
    return "" if value is None else f"{value:%Y-%m-%d %H:%M:%S}.{value.microsecond // 1000:03d}"


def milliseconds(value: datetime | None) -> str:
    """A time as the page's script compares times: milliseconds since the epoch."""
    return "" if value is None else f"{value.timestamp() * 1000:.3f}"


def size(value: float | None) -> str:
    """Bytes in the unit that fits (powers of ten)."""
    if value is None:
        return ""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} TB"
