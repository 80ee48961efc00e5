"""The columns of a message: the union of its versions' fields, less those that no caller asked for.

A `Layout` numbers columns and counters of one (API, side). A counter says how many rows something has: counter `level`
of the root counts messages, that of a list its elements, that of a text column its bytes. Names are Kafka's in
snake_case. Fields of the same name in one struct (another type in another version, a variant) share a column, integers
the widest. Unsigned integers take the next wider signed type, because Spark and Parquet readers have no unsigned ones.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from kdissect.problems import UsageError
from kdissect.schema.model import Field, Message, Versions
from kdissect.schema.names import snake_case

Wanted = Collection[str] | None
"""None: every field and unknown tags. Else dotted snake_case paths, each with all that is below it; "*" stands for
None, "<path>@" adds the position of a records field."""

WIDTHS = {"int8": 0, "int16": 1, "int32": 2, "int64": 3, "float64": 3, "records": 2, "secret": 2}
"""log2 of the bytes of a fixed-size column."""
_SIGNED = {"uint16": "int32", "uint32": "int64"}
_INTEGERS = ("int8", "int16", "int32", "int64")

TAGS_NAME = "_tags"
"""Column of a struct's unknown tags: list<struct<tag: int32, bytes: binary>>, null where there are none."""


@dataclass(slots=True, eq=False, repr=False)
class Column:
    """One node of the tree of columns.

    `kind`: a type of `WIDTHS`, "bool", "uuid", "string", "bytes", "struct", "list", "records" or "secret". Of "records"
    only the size is kept, as `<name>_bytes`, with `at` the column of positions. "secret" is a null column of type
    `text`, and its size. `index` is its row of the column table, `level` the counter of its rows, `sub` that of its
    elements or bytes. `by` names the sibling that says which of its values are credentials; `hidden` is such a sibling
    that no caller asked for.
    """

    name: str
    kind: str
    level: int
    index: int = -1
    sub: int = 0
    at: int = -1
    text: str = ""
    by: str = ""
    hidden: bool = False
    ever_null: bool = False
    children: "dict[str, Column]" = field(default_factory=dict)

    @property
    def element(self) -> "Column":
        """A list's element."""
        return self.children["item"]


class Layout:
    """Columns and counters of one message: `root` is the tree, `columns` the rows of the column table by number."""

    def __init__(self, message: Message, wanted: Wanted, first_counter: int = 1, first_column: int = 0) -> None:
        self.message = message
        self.first_counter = first_counter
        self.end_counter = first_counter
        self.first_column = first_column
        self.columns: list[Column] = []
        everything = wanted is None or "*" in wanted
        self._all = everything
        self._known: set[str] = set()
        self._wanted = frozenset(wanted or ())
        self._above = {path[:at] for path in self._wanted for at, c in enumerate(path) if c == "."}
        self.root = Column("", "struct", self._counter())
        layouts = [message.fields, *(variant.fields for variant in message.variants)]
        self.root.children = self._struct(layouts, self.root.level, "", everything, message.versions, False)
        unknown = self._wanted - self._known - {"*"}
        if unknown:
            raise UsageError(f"{message.name} has no field {', '.join(sorted(unknown))}")

    @property
    def values(self) -> frozenset[int]:
        """The columns that have values of their own: the others hold these."""
        return frozenset(column.index for column in self.columns if column.kind not in ("list", "struct"))

    @property
    def end_column(self) -> int:
        """Number of the first column behind this layout's."""
        return self.first_column + len(self.columns)

    def _counter(self) -> int:
        self.end_counter += 1
        return self.end_counter - 1

    def _column(self, column: Column) -> Column:
        column.index = self.end_column
        self.columns.append(column)
        return column

    def _is_wanted(self, path: str, names: tuple[str, ...], inherited: bool) -> tuple[bool, bool]:
        """(the whole of it is wanted, something in it is) for a path or one of its other names."""
        self._known.update((path, path + "@", *names))
        whole = inherited or path in self._wanted or any(name in self._wanted for name in names)
        return whole, whole or path in self._above

    def _struct(
        self, layouts: list[tuple[Field, ...]], level: int, path: str, keep_all: bool, versions: Versions, null: bool
    ) -> dict[str, Column]:
        named: dict[str, list[Field]] = {}
        for fields in layouts:
            for item in fields:
                named.setdefault(snake_case(item.name), []).append(item)
        out: dict[str, Column] = {}
        for name, items in named.items():
            covers = len(items) == len(layouts) and all(_covers(item.versions, versions) for item in items)
            ever_null = null or not covers or any(item.nullable.first <= item.nullable.last for item in items)
            column = self._field(name, items, level, path + name, keep_all, ever_null)
            if column is not None:
                out[name] = column
        for by in [column.by for column in out.values() if column.by and column.by not in out]:
            found = self._field(by, named[by], level, path + by, True, True)
            if found is not None:
                found.hidden = True
                out[by] = found
        here = path + TAGS_NAME
        self._known.add(here)
        if (self._all or here in self._wanted) and self.message.flexible.first <= self.message.flexible.last:
            out[TAGS_NAME] = self._unknown_tags(level)
        return out

    def _unknown_tags(self, level: int) -> Column:
        """The kernel relies on the order: columns list, tag, bytes; counters elements, bytes."""
        tags = self._column(Column(TAGS_NAME, "list", level, sub=self._counter(), ever_null=True))
        element = Column("item", "struct", tags.sub)
        element.children["tag"] = self._column(Column("tag", "int32", tags.sub))
        element.children["bytes"] = self._column(Column("bytes", "bytes", tags.sub, sub=self._counter()))
        tags.children["item"] = element
        return tags

    def _field(
        self, name: str, items: list[Field], level: int, path: str, inherited: bool, ever_null: bool
    ) -> Column | None:
        kind = _one_kind([item.kind for item in items], path)
        secret = any(item.secret for item in items)
        sized = kind == "records" or secret
        by = next((snake_case(item.secret_by) for item in items if item.secret_by), "")
        names = (path + "_bytes", path + "_at") if sized else (path + "_bytes",) if by else ()
        whole, some = self._is_wanted(path, names, inherited)
        at = path + "@" in self._wanted or (sized and path + "_at" in self._wanted)
        if not (some or at):
            return None
        if sized:
            column = self._column(Column(name, "secret" if secret else kind, level, text=kind, ever_null=ever_null))
            if at:
                column.at = self._column(Column(name + "_at", "int64", level, ever_null=ever_null)).index
            return column
        if kind == "struct":
            column = self._column(Column(name, kind, level, ever_null=ever_null))
            below = [item.fields for item in items]
            column.children = self._struct(below, level, path + ".", whole, _hull(items), ever_null)
            return column
        if kind == "array":
            column = self._column(Column(name, "list", level, sub=self._counter(), ever_null=ever_null))
            below_kind = _one_kind([item.element or "struct" for item in items], path)
            if below_kind == "struct":
                element = Column("item", "struct", column.sub)
                below = [item.fields for item in items]
                element.children = self._struct(below, column.sub, path + ".", whole, _hull(items), False)
            else:
                element = self._scalar("item", below_kind, column.sub, False)
            column.children["item"] = element
            return column
        scalar = self._scalar(name, kind, level, ever_null)
        scalar.by = by
        return scalar

    def _scalar(self, name: str, kind: str, level: int, ever_null: bool) -> Column:
        sub = self._counter() if kind in ("string", "bytes") else 0
        return self._column(Column(name, kind, level, sub=sub, ever_null=ever_null))


def outputs(column: Column) -> Iterator[tuple[str, Column | None]]:
    """(name, column) of what a field shows as: usually itself; sizes and positions of records and secrets; None where
    the value of a secret would stand. A value that may be a credential has its length next to it."""
    if column.hidden:
        return
    if column.kind == "secret":
        yield column.name, None
    if column.kind in ("secret", "records"):
        yield column.name + "_bytes", Column(column.name, "int32", column.level, column.index)
        if column.at >= 0:
            yield column.name + "_at", Column(column.name, "int64", column.level, column.at)
    else:
        yield column.name, column
        if column.by:
            yield column.name + "_bytes", Column(column.name, "int32", column.level)


def _one_kind(kinds: list[str], path: str) -> str:
    """The one type of a column whose field has these types in various versions."""
    found = list(dict.fromkeys(_SIGNED.get(kind, kind) for kind in kinds))
    if len(found) > 1 and all(kind in _INTEGERS for kind in found):
        return max(found, key=_INTEGERS.index)
    if len(found) > 1:
        raise ValueError(f"{path} is {' and '.join(found)} in different versions: give them different names")
    return found[0]


def _covers(outer: Versions, inner: Versions) -> bool:
    return outer.first <= inner.first and outer.last >= inner.last


def _hull(items: list[Field]) -> Versions:
    return Versions(min(item.versions.first for item in items), max(item.versions.last for item in items))
