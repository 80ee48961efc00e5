"""What schemas are compiled to: what folds, what is cut off, what stays."""

from __future__ import annotations

import pytest

from kdissect.problems import UsageError
from kdissect.schema import opcodes as k
from kdissect.schema.layout import Layout
from kdissect.schema.model import REQUEST, RESPONSE, Message
from kdissect.schema.program import Program, ProgramRows, compile_layout
from tests.schema.made import field, message


def compiled(
    made: Message, side: int = REQUEST, version: int = 0, wanted: object = "none"
) -> tuple[ProgramRows, Program]:
    rows = ProgramRows()
    layout = None if wanted == "none" else Layout(made, wanted)  # type: ignore[arg-type]
    return rows, compile_layout(made, side, version, made.fields, layout, rows)


def codes(rows: ProgramRows, start: int = 0, end: int | None = None) -> list[int]:
    return rows.rows[start * k.STRIDE : None if end is None else end * k.STRIDE : k.STRIDE]


def test_adjacent_fixed_fields_fold_into_one_skip() -> None:
    made = message(field("A", "int32"), field("B", "uuid"), field("C", "struct", "0+", field("D", "int16")))
    rows, _ = compiled(made)
    assert codes(rows) == [k.SKIP, k.STOP]
    assert rows.rows[1] == 4 + 16 + 2


def test_an_array_of_fixed_size_is_one_multiplication() -> None:
    made = message(field("A", "[]struct", "0+", field("B", "int32"), field("C", "int64")), field("D", "[]int32"))
    rows, _ = compiled(made)
    assert codes(rows) == [k.MULT, k.MULT, k.STOP]
    assert rows.rows[4] == 12


def test_nothing_folds_across_a_jump() -> None:
    inner = field("A", "struct", "0+", field("B", "int32"), null="0+")
    rows, _ = compiled(message(inner, field("C", "int32")))
    assert codes(rows) == [k.MAYBE, k.SKIP, k.SKIP, k.STOP]
    assert rows.rows[2] == 2, "null goes on behind the struct's skip"


def test_error_codes_of_responses_are_tracked_those_of_requests_are_not() -> None:
    made = message(
        field("ThrottleTimeMs", "int32"),
        field("ErrorCode", "int16"),
        field("A", "[]struct", "0+", field("PartitionErrorCode", "int16")),
    )
    rows, _ = compiled(made, RESPONSE)
    assert codes(rows) == [k.THROTTLE, k.ERROR, k.LIST, k.ERROR, k.NEXT, k.STOP]
    assert (rows.rows[k.STRIDE + 2], rows.rows[3 * k.STRIDE + 2]) == (1, 0), "only the first is the response's own"
    assert codes(compiled(made, REQUEST)[0]) == [k.SKIP, k.MULT, k.STOP]


def test_the_fill_program_ends_behind_the_last_wanted_field() -> None:
    made = message(field("A", "int32"), field("B", "int32"), field("C", "string"), field("D", "[]string"))
    rows, program = compiled(made, wanted={"b"})
    assert codes(rows, program.fill) == [k.F_SKIP, k.F_INT32, k.F_STOP]
    rows, program = compiled(made, wanted=frozenset())
    assert codes(rows, program.fill) == [k.F_STOP]


def test_unwanted_fields_of_elements_fold_too() -> None:
    made = message(
        field("T", "[]struct", "0+", field("A", "int32"), field("B", "int64"), field("C", "int32"), field("D", "uuid"))
    )
    rows, program = compiled(made, wanted={"t.c"})
    assert codes(rows, program.fill) == [k.F_LIST, k.F_SKIP, k.F_INT32, k.F_NEXT, k.F_STOP]
    assert rows.rows[(program.fill + 2) * k.STRIDE + k.BEHIND_AT] == 16, "what follows a number is skipped with it"


def test_what_follows_a_struct_that_may_be_null_is_not_skipped_with_its_last_number() -> None:
    inner = field("A", "struct", "0+", field("B", "int32"), null="0+")
    rows, program = compiled(message(inner, field("C", "int64"), field("D", "int16")), wanted={"a.b", "d"})
    made = codes(rows, program.fill)
    assert k.F_SKIP in made
    assert rows.rows[(program.fill + made.index(k.F_INT32)) * k.STRIDE + k.BEHIND_AT] == 0


def test_the_count_program_is_the_same_whatever_is_wanted() -> None:
    """A body's status must not depend on the projection."""
    made = message(
        field("A", "string", null="0+"),
        field("T", "[]struct", "0+", field("N", "string"), field("X", "int32", tag=0)),
        last=3,
        flexible="2+",
    )
    for version in range(4):
        plain, _ = compiled(made, version=version)
        for wanted in (None, {"t.n"}, frozenset(), {"t.x"}):
            rows, program = compiled(made, version=version, wanted=wanted)
            assert codes(rows, 0, program.fill) == codes(plain)


def test_paths_that_do_not_exist_are_named() -> None:
    made = message(field("Topics", "[]struct", "0+", field("Name", "string")), field("Records", "records"))
    with pytest.raises(UsageError, match=r"topics\.nam"):
        Layout(made, {"topics.nam"})
    Layout(made, {"topics.name", "records@", "records_bytes", "*", "_tags"})


def test_nesting_deeper_than_the_stack_is_refused() -> None:
    made = field("A", "[]struct", "0+", field("B", "string"))
    for _ in range(k.MAX_DEPTH):
        made = field("A", "[]struct", "0+", made)
    with pytest.raises(ValueError, match="nests deeper"):
        compiled(message(made))


def test_a_column_of_two_integer_types_is_the_wider_and_others_are_refused() -> None:
    made = message(
        field("A", "int32", "0"), field("A", "int64", "1+"), field("P", "uint16"), field("Q", "uint32"), last=1
    )
    kinds = {name: column.kind for name, column in Layout(made, None).root.children.items()}
    assert kinds == {"a": "int64", "p": "int32", "q": "int64"}
    with pytest.raises(ValueError, match="different names"):
        Layout(message(field("A", "int32", "0"), field("A", "string", "1+"), last=1), None)


def test_columns_say_whether_they_can_be_null() -> None:
    made = message(field("A", "int32", "1+"), field("B", "int32"), field("C", "string", null="1+"), last=1)
    layout = Layout(made, None)
    numbers = {name: column.index for name, column in layout.root.children.items()}
    zero = compile_layout(made, REQUEST, 0, made.fields, layout, ProgramRows())
    one = compile_layout(made, REQUEST, 1, made.fields, layout, ProgramRows())
    assert zero.has == {numbers["b"], numbers["c"]}
    assert zero.null == {numbers["a"]}
    assert one.has == set(numbers.values())
    assert one.null == {numbers["c"]}
