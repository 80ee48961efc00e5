"""Row filters as people write them, `api = 'Fetch' and latency_ms > 500`, as Arrow expressions.

    expression := and-term { OR and-term }
    and-term   := not-term { AND not-term }
    not-term   := NOT not-term | '(' expression ')' | predicate
    predicate  := operand comparison operand | operand IS [NOT] NULL | operand [NOT] IN '(' literal {',' literal} ')'
                | operand [NOT] (LIKE|ILIKE) string | operand [NOT] BETWEEN operand AND operand | column (boolean ones)
    comparison := = | == | != | <> | < | <= | > | >=
    operand    := column | literal            literal := number [unit] | 'text' | TRUE | FALSE | NULL
    unit       := us | ms | s | min | h (columns `..._ms`) | B | kB | MB | GB | KiB | MiB | GiB (columns of bytes)

Words are case-insensitive, columns are not; `"order"` quotes a column, '' is a quote inside a text. Texts compared
with a timestamp column are times in ISO 8601, UTC unless they say otherwise. As in SQL, null compares with nothing:
a comparison with a null value selects no row, `is null` finds them.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from kdissect.problems import UsageError
from kdissect.tables.suggestion import near

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?)
      | (?P<text>'(?:[^']|'')*')
      | "(?P<quoted>[^"]+)"
      | (?P<word>[A-Za-z_][A-Za-z_0-9]*)
      | (?P<operator><>|<=|>=|==|!=|[=<>(),])
    )""",
    re.VERBOSE,
)
_WORDS = frozenset({"and", "or", "not", "is", "null", "in", "like", "ilike", "between", "true", "false"})
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": lambda a, b: a == b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<>": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
DURATIONS = {"us": 0.001, "ms": 1.0, "s": 1000.0, "min": 60_000.0, "h": 3_600_000.0}
"""Milliseconds of units that may stand behind a number which is compared with a duration."""
SIZES = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
"""Bytes of units that may stand behind a number which is compared with a size."""
MAX_DEPTH = 100
"""Nested parentheses and NOTs; more is no question that anybody asks, and the parser recurses."""


SHOWN = 60
"""Characters of an expression, or of one of its words, that a message repeats."""


class Limit(NamedTuple):
    """A comparison that every row of a filter's result satisfies: `values` has several for `in`, else one. Times are
    datetimes."""

    column: str
    operator: str
    values: tuple[Any, ...]


class Filter(NamedTuple):
    """A parsed filter: for `Table.filter`, the columns that it reads, and what holds for all rows that it keeps."""

    expression: pc.Expression
    columns: frozenset[str]
    limits: tuple[Limit, ...] = ()


class _Operand(NamedTuple):
    """A column (then `name` is set) or a literal value."""

    name: str | None
    value: Any
    place: int
    unit: str | None = None


def parse(text: str, schema: pa.Schema) -> Filter:
    """A filter over the columns of `schema`.

    Raises ValueError, saying where, for anything that is no expression, for an unknown column (with the nearest
    name), and for a value that its column cannot be compared with.
    """
    return _Parser(text, schema).parse()


def read_condition(where: str | None, schema: pa.Schema) -> Filter | None:
    """The filter that a caller asks for, None for none. Raises UsageError where it is no text or no expression."""
    if where is None:
        return None
    if not isinstance(where, str):
        raise UsageError(f"a filter is a text, such as \"error = 'NONE'\", not {where!r}")
    try:
        return parse(where, schema)
    except ValueError as error:
        raise UsageError(str(error)) from None


class _Parser:
    def __init__(self, text: str, schema: pa.Schema) -> None:
        self.text = text
        self.schema = schema
        self.columns: set[str] = set()
        self.limits: list[Limit] = []
        self.tokens = list(_tokens(text))
        self.at = 0
        self.depth = 0

    def parse(self) -> Filter:
        expression = self.either()
        kind, value, place = self.tokens[self.at]
        if kind != "end":
            raise self.error(f"unexpected {_excerpt(value)}", place)
        return Filter(expression, frozenset(self.columns), tuple(self.limits))

    def either(self) -> pc.Expression:
        before = len(self.limits)
        found = self.both()
        while self.word("or"):
            found = found | self.both()
            del self.limits[before:]
        return found

    def both(self) -> pc.Expression:
        found = self.negated()
        while self.word("and"):
            found = found & self.negated()
        return found

    def negated(self) -> pc.Expression:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error("nested too deeply", self.tokens[self.at][2])
        try:
            if self.word("not"):
                before = len(self.limits)
                found = ~self.negated()
                del self.limits[before:]
                return found
            if self.sign("("):
                found = self.either()
                self.expect(")")
                return found
            return self.predicate()
        finally:
            self.depth -= 1

    def predicate(self) -> pc.Expression:
        before = len(self.limits)
        left = self.operand()
        kind, value, place = self.tokens[self.at]
        if kind == "operator" and value in _COMPARE:
            self.at += 1
            return self.compare(value, left, self.operand(), place)
        if self.word("is"):
            negative = self.word("not")
            if not self.word("null"):
                raise self.error("expected NULL", self.tokens[self.at][2])
            found = self.field(left).is_null()
            return ~found if negative else found
        negative = self.word("not")
        if self.word("in"):
            found = self.member(left)
        elif self.word("like"):
            found = self.like(left)
        elif self.word("ilike"):
            found = self.like(left, ignore_case=True)
        elif self.word("between"):
            low = self.operand()
            if not self.word("and"):
                raise self.error("expected AND", self.tokens[self.at][2])
            high = self.operand()
            found = self.compare(">=", left, low, place) & self.compare("<=", left, high, place)
        elif not negative and left.name is not None and pa.types.is_boolean(self.schema.field(left.name).type):
            return pc.field(left.name)
        else:
            raise self.error(
                "expected a comparison, IS, IN, LIKE, ILIKE or BETWEEN"
                + (" (in a shell, put the whole expression in double quotes)" if kind == "end" else ""),
                place,
            )
        if negative:
            del self.limits[before:]
        return ~found if negative else found

    def operand(self) -> _Operand:
        kind, value, place = self.tokens[self.at]
        self.at += 1
        if kind == "number":
            unit, behind, _ = self.tokens[self.at]
            known = unit == "word" and (behind in DURATIONS or behind in SIZES)
            self.at += known
            number = float(value) if re.search(r"[.eE]", value) else _whole_number(value)
            if abs(number) == float("inf"):
                raise self.error("a number that is too large", place)
            return _Operand(None, number, place, behind if known else None)
        if kind == "text":
            return _Operand(None, value[1:-1].replace("''", "'"), place)
        if kind == "word" and value.lower() in ("true", "false", "null"):
            return _Operand(None, {"true": True, "false": False, "null": None}[value.lower()], place)
        if kind == "quoted" or (kind == "word" and value.lower() not in _WORDS):
            if value not in self.schema.names:
                meant = near(value, self.schema.names)
                if self.at > 1:  # the value's side of a comparison
                    meant += f"; a text stands in single quotes: {_excerpt(value)}"
                raise self.error(f"no column {_excerpt(value)}{meant}", place)
            self.columns.add(value)
            return _Operand(value, None, place)
        raise self.error("the expression ends early" if kind == "end" else f"unexpected {_excerpt(value)}", place)

    def field(self, operand: _Operand) -> pc.Expression:
        if operand.name is None:
            raise self.error("expected a column", operand.place)
        return pc.field(operand.name)

    def compare(self, operator: str, left: _Operand, right: _Operand, place: int) -> pc.Expression:
        if left.name is None and right.name is None:
            raise self.error("a comparison needs a column", place)
        left, right = self.scaled(left, right.name), self.scaled(right, left.name)
        sides = [
            pc.scalar(self.literal(one, str(other.name))) if one.name is None else self.widen(one, other)
            for one, other in ((left, right), (right, left))
        ]
        if left.name is not None and right.name is not None:
            self.comparable(left, right)
        elif left.name is not None:
            self.limits.append(Limit(left.name, operator, (self.plain(right, left.name),)))
        else:
            limit = self.plain(left, str(right.name))
            self.limits.append(Limit(str(right.name), _FLIPPED.get(operator, operator), (limit,)))
        return _COMPARE[operator](*sides)

    def widen(self, operand: _Operand, compared: _Operand) -> pc.Expression:
        """A column, as double where it has integers and is compared with fractions: Arrow itself chooses float for
        short fractions, and refuses the integers that it cannot hold."""
        column = pc.field(str(operand.name))
        if not pa.types.is_integer(self.schema.field(str(operand.name)).type):
            return column
        if compared.name is None:
            fractions = pa.types.is_floating(self.literal(compared, str(operand.name)).type)
        else:
            fractions = pa.types.is_floating(self.schema.field(compared.name).type)
        return column.cast(pa.float64(), safe=False) if fractions else column

    def member(self, operand: _Operand) -> pc.Expression:
        column = self.field(operand)
        self.expect("(")
        values = [self.literal(self.scaled(self.constant(), operand.name), str(operand.name))]
        while self.sign(","):
            values.append(self.literal(self.scaled(self.constant(), operand.name), str(operand.name)))
        self.expect(")")
        kind = self.schema.field(str(operand.name)).type
        if pa.types.is_integer(kind):
            column, kind = column.cast(pa.int64()), pa.int64()
        self.limits.append(Limit(str(operand.name), "in", tuple(value.as_py() for value in values)))
        known = [value.as_py() for value in values if value.is_valid and value.type.id == kind.id]  # no integer is 1.5
        found, unknown = column.isin(pa.array(known, kind)), pa.scalar(None, pa.bool_())
        if not all(value.is_valid for value in values):  # one that is not among the others may be the null
            return pc.if_else(found, pa.scalar(True), unknown)
        return pc.if_else(column.is_valid(), found, unknown)

    def scaled(self, operand: _Operand, column: str | None) -> _Operand:
        """A value without its unit, in that of the column it is compared with."""
        if operand.unit is None or column is None:
            return operand
        of_time = column.endswith("_ms")
        of_size = column == "bytes" or column.endswith("_bytes")
        units = DURATIONS if of_time else SIZES if of_size else {}
        if operand.unit not in units:
            what = "milliseconds" if of_time else "bytes" if of_size else "a plain number"
            raise self.error(f"column {column!r} is {what}, {operand.value}{operand.unit} is not", operand.place)
        value = operand.value * units[operand.unit]
        if abs(value) == float("inf"):
            raise self.error("a number that is too large", operand.place)
        return _Operand(None, int(value) if of_size and value == int(value) else value, operand.place)

    def like(self, operand: _Operand, *, ignore_case: bool = False) -> pc.Expression:
        column = self.field(operand)
        kind = self.schema.field(str(operand.name)).type
        pattern = self.constant()
        if not pa.types.is_string(kind):
            raise self.error(f"LIKE compares text, and column {operand.name!r} is {_kind(kind)}", operand.place)
        if not isinstance(pattern.value, str):
            raise self.error("LIKE compares text with a pattern in quotes", pattern.place)
        return pc.match_like(column, pattern.value, ignore_case=ignore_case)

    def constant(self) -> _Operand:
        found = self.operand()
        if found.name is not None:
            raise self.error("expected a value", found.place)
        return found

    def literal(self, operand: _Operand, column: str) -> pa.Scalar:
        """A value in a type that its column compares with."""
        kind, value = self.schema.field(column).type, operand.value
        if value is None:
            return pa.scalar(None, kind)
        if pa.types.is_timestamp(kind) and isinstance(value, str):
            return pa.scalar(self.moment(value, operand.place), kind)
        if pa.types.is_boolean(kind) and isinstance(value, bool):
            return pa.scalar(value)
        if pa.types.is_string(kind) and isinstance(value, str):
            return pa.scalar(value)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            if pa.types.is_integer(kind) and value == int(value) and abs(value) < 2**63:
                return pa.scalar(int(value), pa.int64())
            return pa.scalar(float(value), pa.float64())
        raise self.error(
            f"column {column!r} is {_kind(kind)}, it cannot be compared with {_excerpt(value)}", operand.place
        )

    def plain(self, operand: _Operand, column: str) -> Any:
        """A value that a column is compared with, a datetime for times."""
        of_time = pa.types.is_timestamp(self.schema.field(column).type)
        return self.literal(operand, column).as_py() if of_time else operand.value

    def moment(self, text: str, place: int) -> datetime:
        try:
            found = datetime.fromisoformat(text)
            return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
        except (ValueError, OverflowError):
            raise self.error(f"{_excerpt(text)} is no time such as '2026-01-31 12:00:00'", place) from None

    def comparable(self, left: _Operand, right: _Operand) -> None:
        kinds = [_kind(self.schema.field(str(operand.name)).type) for operand in (left, right)]
        if kinds[0] != kinds[1]:
            raise self.error(f"{left.name!r} is {kinds[0]}, {right.name!r} is {kinds[1]}", right.place)

    def word(self, text: str) -> bool:
        kind, value, _ = self.tokens[self.at]
        if kind == "word" and value.lower() == text:
            self.at += 1
            return True
        return False

    def sign(self, text: str) -> bool:
        kind, value, _ = self.tokens[self.at]
        if kind == "operator" and value == text:
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.sign(text):
            raise self.error(f"expected {text!r}", self.tokens[self.at][2])

    def error(self, message: str, place: int) -> ValueError:
        return ValueError(f"{message} at character {place + 1} of {_excerpt(self.text, place)}")


def _tokens(text: str) -> Any:
    at = 0
    end = len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None:
            place = at + len(text[at:]) - len(text[at:].lstrip())
            raise ValueError(f"unexpected {text[place]!r} at character {place + 1} of {_excerpt(text, place)}")
        kind = str(found.lastgroup)
        yield kind, found.group(kind), found.start(kind)
        at = found.end()
    yield "end", "", end


def _whole_number(digits: str) -> float:
    """An integer; infinity where no number of Arrow's is as large."""
    large = float(digits)
    return large if abs(large) == float("inf") else int(digits)


def _excerpt(value: Any, place: int = 0) -> str:
    """As `repr`, of a long text only what is around `place`."""
    if not isinstance(value, str) or len(value) <= SHOWN:
        return repr(value)
    begin = max(0, min(place - SHOWN // 2, len(value) - SHOWN))
    end = begin + SHOWN
    return ("..." if begin else "") + repr(value[begin:end]) + ("..." if end < len(value) else "")


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return "a number"
    if pa.types.is_timestamp(kind):
        return "a time"
    if pa.types.is_boolean(kind):
        return "true or false"
    if pa.types.is_list(kind):
        return "a list"
    return "text" if pa.types.is_string(kind) else str(kind)
