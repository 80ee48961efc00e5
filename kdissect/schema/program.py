"""From a layout of the wire format to the rows of its two programs (see `opcodes` for the two languages).

`compile_layout` takes the fields of one (API, side, version, variant). With a `Layout` it also makes the fill program
for the columns of that layout, and its count program counts them; without, the count program only checks and tracks
(skim).
"""

from __future__ import annotations

import struct

from kdissect.schema import opcodes as k
from kdissect.schema.layout import TAGS_NAME, WIDTHS, Column, Layout
from kdissect.schema.model import NAME, PUBLIC, RESPONSE, SCALARS, Field, Message
from kdissect.schema.names import snake_case
from kdissect.schema.rules import Rules

COMPILER = 2
"""Counted up whenever the rows made from the same schema change: compiled programs are cached."""

_FILL = {"int32": k.F_INT32, "int64": k.F_INT64, "float64": k.F_INT64, "uuid": k.F_UUID}
"""Types with an op-code of their own; the others share F_INTEGER."""


class ProgramRows:
    """Program rows, tag rows and constants, growing. `first_*` is where they will stand in a larger table."""

    def __init__(self, first_row: int = 0, first_tag: int = 0, first_constant: int = 0) -> None:
        self.first_row = first_row
        self.first_tag = first_tag
        self.first_constant = first_constant
        self.rows: list[int] = []
        self.tags: list[int] = []
        self.constants: list[int] = []
        self._label = -1

    def mark_target(self) -> int:
        """The next row's address, as something jumps to: nothing is merged across it."""
        self._label = len(self.rows)
        return self.first_row + self._label // k.STRIDE

    def next(self) -> int:
        """The address behind the row that comes next."""
        return self.first_row + len(self.rows) // k.STRIDE + 1

    def op(self, *operands: int) -> int:
        """Append a row; its place in `rows`, for `patch`."""
        place = len(self.rows)
        self.rows += operands
        self.rows += [0] * (k.STRIDE - len(operands))
        return place

    def skip(self, *skip: int) -> None:
        """Append a skip row (its last operand is the size), or lengthen the one before where nothing jumps between
        them. A fill program's number before it is skipped from as well."""
        last = len(self.rows) - k.STRIDE
        straight = last >= 0 and self._label != len(self.rows)
        if straight and self.rows[last] == skip[0]:
            self.rows[last + len(skip) - 1] += skip[-1]
        elif straight and skip[0] == k.F_SKIP and self.rows[last] in k.F_NUMBERS:
            self.rows[last + k.BEHIND_AT] += skip[-1]
        else:
            self.op(*skip)

    def patch(self, place: int, operand: int, value: int) -> None:
        """Set an operand of the row that `op` put at `place`."""
        self.rows[place + operand] = value

    def reserve_tags(self, number: int) -> tuple[int, int]:
        """Room for the known tags of one struct: (row of the tag table, place in `tags`)."""
        place = len(self.tags)
        self.tags += [0] * (number * k.TAG_STRIDE)
        return self.first_tag + place // k.TAG_STRIDE, place

    def constant(self, value: int) -> int:
        """The row of the constants that holds a value."""
        if value not in self.constants:
            self.constants.append(value)
        return self.first_constant + self.constants.index(value)


class Program:
    """Where the two programs of one layout start in the rows; `fill` is -1 without columns.

    `has` are the columns which a value can reach, `null` those which can be null. A column that no program of a batch
    can make null needs no validity bitmap, and one that none has needs no memory at all.
    """

    def __init__(self) -> None:
        self.count = 0
        self.fill = -1
        self.has: set[int] = set()
        self.null: set[int] = set()


def compile_layout(
    message: Message, side: int, version: int, fields: tuple[Field, ...], layout: Layout | None, rows: ProgramRows
) -> Program:
    """Compile one version into `rows`. `fields` are the message's own or a variant's; `side` is REQUEST or RESPONSE."""
    compiler = _Compiler(message, side, version, rows)
    program = compiler.program
    program.count = rows.mark_target()
    compiler.count_struct(fields, layout.root if layout else None, top=True)
    rows.op(k.STOP)
    if layout is not None:
        program.fill = rows.mark_target()
        compiler.fill_root(fields, layout.root)
    return program


class _Compiler(Rules):
    def __init__(self, message: Message, side: int, version: int, rows: ProgramRows) -> None:
        super().__init__(message, side, version)
        self.program = Program()
        self.rows = rows
        self.depth = 0
        self.effect = 0
        self.config_names: list[set[str]] = []
        """Of the structs around: fields that name a configuration whose value stands beside them."""

    def deeper(self, step: int) -> None:
        self.depth += step
        if self.depth > k.MAX_DEPTH:
            raise ValueError(f"{self.message.name} nests deeper than {k.MAX_DEPTH}")

    # the count program ------------------------------------------------------------------------------------------------

    def count_struct(self, fields: tuple[Field, ...], column: Column | None, top: bool = False) -> None:
        plain, tagged = self.split(fields)
        self.config_names.append({item.secret_by for item in fields if item.secret_by})
        self._count_parts(plain, tagged, column, top)
        self.config_names.pop()

    def _count_parts(self, plain: list[Field], tagged: list[Field], column: Column | None, top: bool) -> None:
        for item in plain:
            self.count_field(item, _child(column, item), top)
        if not self.flexible:
            return
        first, place = self.rows.reserve_tags(len(tagged))
        unknown = column.children.get(TAGS_NAME) if column else None
        row = self.rows.op(k.TAGS, k.COMPACT, unknown.sub if unknown else 0, 0, first, len(tagged))
        self.deeper(1)
        for item in tagged:
            self.rows.tags[place : place + 2] = (item.tag or 0, self.rows.mark_target())
            place += k.TAG_STRIDE
            self.count_field(item, _child(column, item), top, tagged=True)
            self.rows.op(k.TAGEND)
        self.deeper(-1)
        self.rows.patch(row, 3, self.rows.mark_target())

    def count_field(self, item: Field, column: Column | None, top: bool, tagged: bool = False) -> None:
        rows = self.rows
        if self.is_error(item):
            rows.op(k.ERROR, 2, int(top and item.name == "ErrorCode"))
        elif self.side == RESPONSE and top and item.name == "ThrottleTimeMs" and item.kind == "int32":
            rows.op(k.THROTTLE, 4)
        elif item.kind in SCALARS:
            rows.skip(k.SKIP, SCALARS[item.kind])
        elif item.kind == "struct":
            if self.nullable(item):
                _no_tagged_null(self.message, item, tagged)
                row = rows.op(k.MAYBE, 1)
                self.count_struct(item.fields, column)
                rows.patch(row, 2, rows.mark_target())
            else:
                self.count_struct(item.fields, column)
        elif item.kind == "array":
            form, nullable, counter = self.form(item, "array"), int(self.nullable(item)), column.sub if column else 0
            least, exact = self.element(item)
            text = item.element in ("string", "bytes")
            if exact:
                rows.op(k.MULT, form, nullable, counter, exact)
                return
            row = rows.op(k.LIST, form, nullable, counter, max(least, 1))
            rows.mark_target()
            self.deeper(1)
            if text:
                bytes_of = column.element.sub if column else 0
                rows.op(k.TEXT, self.form(item, item.element or ""), 0, bytes_of, 0, 0, 0, self.kind(item))
            else:
                self.count_struct(item.fields, column.element if column else None)
            self.deeper(-1)
            rows.op(k.NEXT)
            rows.patch(row, 5, rows.mark_target())
        else:
            counter = column.sub if column and column.kind in ("string", "bytes") else 0
            rows.op(k.TEXT, self.form(item, item.kind), int(self.nullable(item)), counter, 0, 0, 0, self.kind(item))

    def kind(self, item: Field) -> int:
        """The kind of a text: whether it may be shown to others."""
        if "records" in (item.kind, item.element):
            return k.RECORDS
        if item.secret_by:
            return k.CONFIG_VALUE
        if item.secret or item.policy not in (PUBLIC, NAME):
            return k.BLANK
        if item.name in self.config_names[-1]:
            return k.CONFIG_NAME
        return k.KEEP_NAME if item.policy == NAME else k.KEEP

    # the fill program -------------------------------------------------------------------------------------------------

    def fill_root(self, fields: tuple[Field, ...], root: Column) -> None:
        """The whole body; rows behind the last one that writes something are cut off (the count program went there)."""
        rows = self.rows
        self.effect = len(rows.rows)
        self.fill_struct(fields, root, top=True)
        del rows.rows[self.effect :]
        rows.mark_target()
        rows.op(k.F_STOP, root.level, -1)

    def fill_struct(self, fields: tuple[Field, ...], column: Column | None, top: bool = False) -> None:
        rows = self.rows
        plain, tagged = self.split(fields)
        if column:
            present = {snake_case(item.name) for item in (*plain, *tagged)}
            absent = [child for name, child in column.children.items() if name not in present and name != TAGS_NAME]
            unknown = column.children.get(TAGS_NAME)
            if unknown is not None and not self.flexible:
                absent.append(unknown)
            for missing in absent:
                self.fill_absent(missing)
            if top:
                self.effect = len(rows.rows)
        for item in plain:
            child = _child(column, item)
            self.fill_field(item, child)
            if top and child:
                self.effect = len(rows.rows)
        if not self.flexible:
            return
        unknown = column.children.get(TAGS_NAME) if column else None
        children = [(item, _child(column, item)) for item in tagged]
        asked = [(item, child) for item, child in children if child or unknown]  # all, to know which are unknown
        if not asked and unknown is None:
            rows.op(k.F_TAGS, 0, -1, k.COMPACT, 0, rows.next(), 0, 0)
            return
        self.fill_tags(asked, unknown, column)
        if top:
            self.effect = len(rows.rows)

    def fill_tags(
        self, fields: list[tuple[Field, Column | None]], unknown: Column | None, column: Column | None
    ) -> None:
        rows = self.rows
        first, place = rows.reserve_tags(len(fields))
        level = column.level if column else 0
        if unknown is not None:
            self.mark(unknown, null=True)
        index, counter = (unknown.index, unknown.sub) if unknown else (-1, 0)
        row = rows.op(k.F_TAGS, level, index, k.COMPACT, counter, 0, first, len(fields))
        for item, child in fields:  # what follows the row when there are no tags at all
            if child:
                self.fill_default(item, child)
        over = rows.op(k.F_JUMP, 0, -1) if fields else -1
        for item, child in fields:
            value = rows.mark_target()
            self.fill_field(item, child)
            rows.op(k.F_TAGEND, 0, -1, 1)
            rows.tags[place : place + 3] = (item.tag or 0, value, rows.mark_target())
            place += k.TAG_STRIDE
            if child:
                self.fill_default(item, child)
            rows.op(k.F_TAGEND, 0, -1, 0)
        rows.patch(row, 5, rows.mark_target())
        if fields:
            rows.patch(over, 3, rows.mark_target())

    def mark(self, column: Column, null: bool = False) -> None:
        """A value can stand in this column; with `null`, a null too."""
        self.program.has.add(column.index)
        if column.at >= 0:
            self.program.has.add(column.at)
        if null:
            self.program.null.add(column.index)
        if column.name == TAGS_NAME:
            self.program.has.update((column.index + 1, column.index + 2))

    def fill_field(self, item: Field, column: Column | None) -> None:
        if column is None:
            self.fill_pass(item)
            return
        rows = self.rows
        self.mark(column, self.nullable(item))
        level, index, kind = column.level, column.index, column.kind
        if kind == "struct":
            row = -1
            if self.nullable(item):
                row = rows.op(k.F_MAYBE, level, index)
            if column.ever_null:
                rows.op(k.F_VALID, level, index)
            self.fill_struct(item.fields, column)
            if row >= 0:
                over = rows.op(k.F_JUMP, 0, -1)
                rows.patch(row, 3, rows.mark_target())
                for child in column.children.values():
                    self.fill_absent(child)
                rows.patch(over, 3, rows.mark_target())
        elif kind == "list":
            element = column.element
            form = self.form(item, "array")
            if item.element == element.kind == "int32":
                self.mark(element)
                rows.op(k.F_INT32S, level, index, form, column.sub, element.index)
                return
            row = rows.op(k.F_LIST, level, index, form, column.sub)
            rows.mark_target()
            if element.kind == "struct":
                self.fill_struct(item.fields, element)
            else:
                self.mark(element)
                self.fill_scalar(element, item.element or "", self.form(item, item.element or ""))
            rows.op(k.F_NEXT, 0, -1)
            rows.patch(row, 5, rows.mark_target())
        elif kind in ("secret", "records"):
            rows.op(k.F_SIZE, level, index, self.form(item, item.kind), column.at)
        else:
            self.fill_scalar(column, item.kind, self.form(item, item.kind))

    def fill_scalar(self, column: Column, kind: str, form: int) -> None:
        rows, level, index = self.rows, column.level, column.index
        if kind in ("string", "bytes"):
            rows.op(k.F_TEXT, level, index, form, column.sub)
        elif kind == column.kind and kind in _FILL:
            rows.op(_FILL[kind], level, index)
        else:
            rows.op(k.F_INTEGER, level, index, SCALARS[kind], _width(column), int(not kind.startswith("u")))

    def fill_pass(self, item: Field) -> None:
        """A field that no caller asked for."""
        rows = self.rows
        if item.kind in SCALARS:
            rows.skip(k.F_SKIP, 0, -1, SCALARS[item.kind])
        elif item.kind == "struct":
            row = rows.op(k.F_MAYBE, 0, -1) if self.nullable(item) else -1
            self.fill_struct(item.fields, None)
            if row >= 0:
                rows.patch(row, 3, rows.mark_target())
        elif item.kind == "array":
            form = self.form(item, "array")
            size = SCALARS.get(item.element or "") or (self.fixed(item.fields) if item.element == "struct" else None)
            if size:
                rows.op(k.F_PASS, 0, -1, form, size)
                return
            row = rows.op(k.F_LIST, 0, -1, form, 0)
            rows.mark_target()
            if item.element == "struct":
                self.fill_struct(item.fields, None)
            else:
                rows.op(k.F_PASS, 0, -1, self.form(item, item.element or ""), 1)
            rows.op(k.F_NEXT, 0, -1)
            rows.patch(row, 5, rows.mark_target())
        else:
            rows.op(k.F_PASS, 0, -1, self.form(item, item.kind), 1)

    def fixed(self, fields: tuple[Field, ...]) -> int | None:
        """Bytes of a struct of fixed size; error codes are nothing special to a fill program."""
        plain = self.split(fields)[0]
        return None if self.flexible or any(i.kind not in SCALARS for i in plain) else sum(map(self.least, plain))

    def fill_absent(self, column: Column) -> None:
        """Null, for a field which this version does not have or whose struct is null."""
        self.program.null.add(column.index)
        if column.kind in ("string", "bytes", "list"):
            self.rows.op(k.F_EMPTY, column.level, column.index, column.sub, 0)
        elif column.kind == "struct":
            for child in column.children.values():
                self.fill_absent(child)

    def fill_default(self, item: Field, column: Column) -> None:
        """The value of an absent tagged field: its default, by Kafka's rules zero or empty where the schema has
        none."""
        rows, level, index = self.rows, column.level, column.index
        if item.has_default and item.default is None:
            self.fill_absent(column)
        elif column.kind == "struct":
            rows.op(k.F_VALID, level, index)
            present = {snake_case(below.name): below for below in item.fields if self.version in below.versions}
            for name, part in column.children.items():
                if name in present:
                    self.mark(part)
                    self.fill_default(present[name], part)
                else:
                    self.fill_absent(part)
        elif column.kind in ("string", "bytes", "list"):
            if item.default:
                raise ValueError(f"{self.message.name}.{item.name}: a tagged field's default can only be empty or null")
            rows.op(k.F_EMPTY, level, index, column.sub, 1)
        elif column.kind == "uuid":
            rows.op(k.F_UUID, level, index, 1)
        else:
            value = item.default or 0
            bits = struct.unpack("<q", struct.pack("<d", float(value)))[0] if column.kind == "float64" else int(value)
            rows.op(k.F_CONST, level, index, rows.constant(bits), _width(column))


def _width(column: Column) -> int:
    return k.BOOL_WIDTH if column.kind == "bool" else WIDTHS[column.kind]


def _child(column: Column | None, item: Field) -> Column | None:
    return column.children.get(snake_case(item.name)) if column else None


def _no_tagged_null(message: Message, item: Field, tagged: bool) -> None:
    if tagged:
        raise ValueError(f"{message.name}.{item.name}: Kafka has no nullable struct in a tag, its encoding is unknown")
