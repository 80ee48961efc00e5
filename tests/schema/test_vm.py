"""The kernels on bodies made by hand: every rule of encoding, every way to lie, every bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kdissect.kafka.exchanges.messages import Decoder
from kdissect.kernels.kernel import kernel
from kdissect.schema import opcodes as k
from kdissect.schema.filling import ColumnMemory, fill
from kdissect.schema.model import RESPONSE, Message
from kdissect.schema.vm import SKIM, Bodies, Layouts, consumes, count  # noqa: F401  (SKIM is named in signatures)
from tests.schema.made import KEY, api, decode, field, laid, message, pack

ZERO_UUID = "A" * 22


def status(made: Message, body: bytes, version: int = 0) -> int:
    return int(decode(made, body, version=version)[0].status[0])


# what is written how

SCALARS = message(
    field("A", "int8"), field("B", "int16"), field("C", "int32"), field("D", "int64"), field("E", "uint16"),
    field("F", "uint32"), field("G", "float64"), field("H", "bool"), field("I", "uuid"), field("J", "bool"),
)  # fmt: skip


def test_scalars() -> None:
    body = pack("bhiqHId?", -1, -2, -3, -4, 65535, 2**32 - 1, 1.5, True) + bytes(range(16)) + b"\0"
    least = pack("bhiqHId?", -128, -(2**15), -(2**31), -(2**63), 0, 0, -0.0, False) + b"\xff" * 16 + b"\x07"
    _, rows = decode(SCALARS, body, least)
    assert list(rows[0].values()) == [-1, -2, -3, -4, 65535, 2**32 - 1, 1.5, True, "AAECAwQFBgcICQoLDA0ODw", False]
    assert list(rows[1].values()) == [-128, -(2**15), -(2**31), -(2**63), 0, 0, -0.0, False, "_" * 21 + "w", True]


TEXTS = message(
    field("S", "string"), field("N", "string", null="0+"), field("B", "bytes", null="0+"),
    field("R", "records", null="0+"), last=1, flexible="1+",
)  # fmt: skip


def test_texts_in_both_forms() -> None:
    old = pack("h", 2) + b"ab" + pack("h", -1) + pack("i", 3) + b"\0\1\2" + pack("i", 5) + b"r" * 5
    new = b"\3ab" + b"\0" + b"\4\0\1\2" + b"\6rrrrr" + b"\0"
    nulls = b"\1" + b"\0\0\0" + b"\0"
    long = b"\xad\x02" + b"x" * 300 + b"\0\0\0\0"
    _, rows = decode(TEXTS, old, new, nulls, long, version=[0, 1, 1, 1])
    assert rows[0] == {"s": "ab", "n": None, "b": b"\0\1\2", "r_bytes": 5, "_tags": None}
    assert rows[1] == rows[0]
    assert rows[2] == {"s": "", "n": None, "b": None, "r_bytes": None, "_tags": None}
    assert rows[3]["s"] == "x" * 300


def test_positions_of_records() -> None:
    body = b"\1\0\0" + b"\6rrrrr" + b"\0"
    nulls = b"\1\0\0\0\0"
    _, rows = decode(TEXTS, body, nulls, body, version=1, wanted={"r@"})
    assert rows == [{"r_bytes": 5, "r_at": 4}, {"r_bytes": None, "r_at": None}, {"r_bytes": 5, "r_at": 4 + 10 + 5}]
    _, rows = decode(TEXTS, body, version=1, wanted={"r"})
    assert rows == [{"r_bytes": 5}]
    _, rows = decode(TEXTS, body, version=1, wanted={"*", "r@"})
    assert set(rows[0]) == {"s", "n", "b", "r_bytes", "r_at", "_tags"}


def test_secrets_show_their_length_only() -> None:
    made = message(field("Password", "bytes", secret=True, null="0+"), field("Salt", "string", secret=True))
    _, rows = decode(made, pack("i", 3) + b"abc" + pack("h", 2) + b"xy", pack("ih", -1, 0))
    assert rows[0] == {"password": None, "password_bytes": 3, "salt": None, "salt_bytes": 2}
    assert rows[1] == {"password": None, "password_bytes": None, "salt": None, "salt_bytes": 0}


def test_values_of_secret_configurations_are_hidden() -> None:
    made = message(
        field("C", "[]struct", "0+", field("Name", "string"), field("Value", "string", null="0+", secret_by="Name"))
    )
    pairs = [
        ("ssl.key.password", b"hunter2"), ("retention.ms", b"5"), ("sasl.jaas.config", None), ("a", None),
        ("my.plugin.token", b"hunter22"), ("", b"x"),
    ]  # fmt: skip
    texts = [(name, pack("h", -1) if value is None else pack("h", len(value)) + value) for name, value in pairs]
    body = pack("i", len(texts)) + b"".join(pack("h", len(name)) + name.encode() + value for name, value in texts)
    for wanted in (None, {"c.value"}, {"c.value_bytes"}):
        _, rows = decode(made, body, wanted=wanted)
        assert [row["value"] for row in rows[0]["c"]] == [None, "5", None, None, None, None]
        assert [row["value_bytes"] for row in rows[0]["c"]] == [7, 1, None, None, 8, 1]
        assert ("name" in rows[0]["c"][0]) == (wanted is None)


LISTS = message(
    field("T", "[]struct", "0+", field("N", "string"), field("P", "[]int32"), null="0+"), field("U", "[]uuid"),
    field("S", "[]string"), field("Q", "[]int16"),
)  # fmt: skip


def test_lists() -> None:
    topic = pack("h", 1) + b"a" + pack("iii", 2, 7, -8)
    full = pack("i", 2) + topic + pack("h", 0) + pack("i", 0) + pack("i", 1) + b"\0" * 16
    full += pack("i", 2) + pack("h", 1) + b"x" + pack("h", 2) + b"yz" + pack("ihhh", 3, 1, -2, 3)
    nothing = pack("iiii", -1, 0, 0, 0)
    _, rows = decode(LISTS, full, nothing, full)
    assert rows[0] == rows[2]
    assert rows[0]["t"] == [{"n": "a", "p": [7, -8]}, {"n": "", "p": []}]
    assert rows[0]["u"] == [ZERO_UUID]
    assert rows[0]["s"] == ["x", "yz"]
    assert rows[0]["q"] == [1, -2, 3]
    assert rows[1] == {"t": None, "u": [], "s": [], "q": []}


MAYBES = message(
    field("C", "struct", "0+", field("N", "string"), field("P", "int32"), field("L", "[]int32"), null="0+"),
    field("Z", "int8"), last=1, flexible="0+",
)  # fmt: skip


def test_structs_that_may_be_null() -> None:
    there = b"\1" + b"\2a" + pack("i", 9) + b"\2" + pack("i", 4) + b"\0" + b"\7\0"
    _, rows = decode(MAYBES, there, b"\xff\7\0", there)
    assert rows[0] == rows[2] == {"c": {"n": "a", "p": 9, "l": [4], "_tags": None}, "z": 7, "_tags": None}
    assert rows[1] == {"c": None, "z": 7, "_tags": None}
    assert status(MAYBES, b"\2\7\0") == k.BAD_LENGTH, "neither there nor null"


TAGGED = message(
    field("A", "int8"), field("S", "string", tag=0, null="0+", default=None), field("T", "[]int32", tag=1),
    field("U", "uuid", tag=2), field("L", "int64", tag=3, default=-1), field("B", "bool", tag=4, default=True),
    field("X", "struct", "0+", field("P", "int32", default=-1), field("Q", "string"), tag=5),
    field("N", "[]uuid", tag=6, null="0+", default=None), field("F", "float64", tag=7, default=0.5),
    field("E", "string", tag=8), field("H", "int16", tag=9, default=-2), field("I", "int8", tag=10, default=-3),
    flexible="0+",
)  # fmt: skip
DEFAULTS = {
    "a": 1, "s": None, "t": [], "u": ZERO_UUID, "l": -1, "b": True, "x": {"p": -1, "q": "", "_tags": None}, "n": None,
    "f": 0.5, "e": "", "h": -2, "i": -3, "_tags": None,
}  # fmt: skip


def tag(number: int, value: bytes) -> bytes:
    return bytes([number, len(value)]) + value


def test_tags_that_do_not_come_have_their_defaults() -> None:
    some = b"\1\2" + tag(3, pack("q", 5)) + tag(5, pack("i", 6) + b"\2q" + b"\0")
    all_of_them = b"\1\x0b" + tag(0, b"\2s") + tag(1, b"\2" + pack("i", 3)) + tag(2, b"\0" * 15 + b"\1")
    all_of_them += tag(3, pack("q", 4)) + tag(4, b"\0") + tag(5, pack("i", 5) + b"\1\0") + tag(6, b"\1")
    all_of_them += tag(7, pack("d", 7.5)) + tag(8, b"\2e") + tag(9, pack("h", 9)) + tag(10, b"\x0a")
    found, rows = decode(TAGGED, b"\1\0", some, all_of_them, b"\1\0")
    assert not found.status.any()
    assert rows[0] == rows[3] == DEFAULTS
    assert rows[1] == DEFAULTS | {"l": 5, "x": {"p": 6, "q": "q", "_tags": None}}
    assert rows[2] == {
        "a": 1, "s": "s", "t": [3], "u": "A" * 21 + "Q", "l": 4, "b": False, "x": {"p": 5, "q": "", "_tags": None},
        "n": [], "f": 7.5, "e": "e", "h": 9, "i": 10, "_tags": None,
    }  # fmt: skip


def test_unknown_tags_are_kept_with_the_struct_they_stand_in() -> None:
    made = message(field("T", "[]struct", "0+", field("A", "int8"), field("K", "int8", tag=1)), last=1, flexible="1+")
    body = b"\3" + b"\1\2" + tag(1, b"\5") + tag(9, b"xyz") + b"\2\0" + b"\1" + tag(0, b"")
    _, rows = decode(made, body, pack("ib", 1, 3), body, version=[1, 0, 1])
    assert rows[0] == rows[2]
    assert rows[0] == {
        "t": [{"a": 1, "k": 5, "_tags": [{"tag": 9, "bytes": b"xyz"}]}, {"a": 2, "k": 0, "_tags": None}],
        "_tags": [{"tag": 0, "bytes": b""}],
    }
    assert rows[1] == {"t": [{"a": 3, "k": None, "_tags": None}], "_tags": None}
    _, rows = decode(made, body, version=1, wanted={"t.a"})
    assert rows == [{"t": [{"a": 1}, {"a": 2}]}]
    _, rows = decode(made, body, version=1, wanted={"t._tags"})
    assert rows[0]["t"][0] == {"_tags": [{"tag": 9, "bytes": b"xyz"}]}, (
        "a known tag that nobody asked for is not unknown"
    )


def test_versions_share_columns() -> None:
    made = message(
        field("A", "int32", "0"), field("A", "int64", "1+"), field("B", "string", "1+"), field("C", "[]int8", "1+"),
        field("S", "struct", "1+", field("D", "string")), last=1,
    )  # fmt: skip
    one = pack("q", 2**40) + pack("h", 1) + b"b" + pack("ib", 1, 7) + pack("h", 1) + b"d"
    _, rows = decode(made, pack("i", -5), one, pack("i", 6), version=[0, 1, 0])
    assert rows[0] == {"a": -5, "b": None, "c": None, "s": None}
    assert rows[1] == {"a": 2**40, "b": "b", "c": [7], "s": {"d": "d"}}
    assert rows[2]["a"] == 6


def test_text_that_is_not_utf8_is_shown_all_the_same() -> None:
    made = message(field("S", "[]string"), field("B", "bytes"))
    words = ["a", "é", "\u20ac"]
    raw = [word.encode() for word in words] + [b"\xff\xfe", b"a\xc3"]
    body = pack("i", 5) + b"".join(pack("h", len(word)) + word for word in raw) + pack("i", 1) + b"\xff"
    split = pack("i", 2) + pack("h", 1) + b"\xc3" + pack("h", 1) + b"\xa9" + pack("i", 0)  # é cut between two strings
    _, rows = decode(made, body, split)
    assert rows[0] == {"s": [*words, "\ufffd\ufffd", "a\ufffd"], "b": b"\xff"}
    assert rows[1]["s"] == ["\ufffd", "\ufffd"]


# what responses say about errors

ERRORS = message(
    field("ThrottleTimeMs", "int32", "1+"),
    field("P", "[]struct", "0+", field("N", "string"), field("PartitionErrorCode", "int16")),
    field("ErrorCode", "int16", "1+"), last=1,
)  # fmt: skip


@pytest.mark.parametrize("wanted", [None, frozenset(), {"p.n"}, {"error_code", "p.partition_error_code"}])
def test_error_codes_and_throttle_time(wanted: Any) -> None:
    def body(throttle: int | None, errors: list[int], last: int | None) -> bytes:
        out = pack("i", throttle) if throttle is not None else b""
        out += pack("i", len(errors)) + b"".join(pack("h", 1) + b"n" + pack("h", error) for error in errors)
        return out + (pack("h", last) if last is not None else b"")

    bodies = [body(5, [0, 3, -1], 0), body(0, [], 41), body(None, [6], None), body(0, [9], 41) + b"!"]
    found, _ = decode(ERRORS, *bodies, version=[1, 1, 0, 1], wanted=wanted, side=RESPONSE)
    assert found.status.tolist() == [0, 0, 0, k.TRAILING]
    assert found.error_code.tolist() == [0, 41, k.NO_CODE, k.NO_CODE]
    assert found.error_first.tolist() == [3, 41, 6, 0]
    assert found.error_count.tolist() == [2, 1, 1, 0]
    assert found.throttle_ms.tolist() == [5, 0, -1, -1]


# lies


@pytest.mark.parametrize(
    ("made", "body", "expected"),
    [
        (message(field("S", "string")), pack("h", 5) + b"abcd", k.SHORT),
        (message(field("S", "string")), pack("h", -1), k.BAD_NULL),
        (message(field("S", "string")), pack("h", -2), k.BAD_LENGTH),
        (message(field("S", "string")), pack("h", -32768), k.BAD_LENGTH),
        (message(field("S", "string")), b"\0", k.SHORT),
        (message(field("B", "bytes")), pack("i", 2**31 - 1), k.SHORT),
        (message(field("B", "bytes", null="0+")), pack("i", -(2**31)), k.BAD_LENGTH),
        (message(field("A", "[]int8")), pack("i", 2**31 - 1), k.BAD_COUNT),
        (message(field("A", "[]int8")), pack("i", -1), k.BAD_NULL),
        (message(field("A", "[]int64")), pack("iq", 2, 1), k.BAD_COUNT),
        (message(field("A", "[]string")), pack("i", 2**31 - 1) + b"\0" * 100, k.BAD_COUNT),
        (message(field("A", "[]struct", "0+", field("B", "int8", "1+")), last=1), pack("i", 2**31 - 1), k.BAD_COUNT),
        (message(field("S", "string"), flexible="0+"), b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", k.BAD_VARINT),
        (message(field("S", "string"), flexible="0+"), b"\xff\xff\xff\xff\x7f" + b"a" * 9, k.SHORT),
        (message(field("S", "string"), flexible="0+"), b"\x80", k.SHORT),
        (message(field("S", "string"), flexible="0+"), b"\0\0", k.BAD_NULL),
        (message(field("A", "[]int8"), flexible="0+"), b"\xff\xff\xff\xff\x7f\0", k.BAD_COUNT),
        (message(flexible="0+"), b"\xff\xff\xff\xff\x7f", k.BAD_COUNT),
        (message(flexible="0+"), b"\1\0\5abcd", k.SHORT),
        (message(flexible="0+"), b"\1\0\xff\xff\xff\xff\x7f", k.SHORT),
        (message(flexible="0+"), b"\1\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\0", k.BAD_VARINT),
        (TAGGED, b"\1\2" + tag(4, b"\0") + tag(4, b"\0"), k.BAD_TAG),
        (TAGGED, b"\1\1" + tag(4, b"\0\0"), k.BAD_TAG),
        (TAGGED, b"\1\1" + tag(3, b"\0"), k.SHORT),
        (TAGGED, b"\1\1" + tag(1, b"\2\0\0\0\1\0"), k.BAD_TAG),
        (TAGGED, b"\1\1" + tag(1, b"\3\0\0\0\1\0"), k.BAD_COUNT),
        (TAGGED, b"\1\0\0", k.TRAILING),
        (message(), b"\0", k.TRAILING),
    ],
)
def test_lies_are_named(made: Message, body: bytes, expected: int) -> None:
    found, rows = decode(made, body)
    assert found.status.tolist() == [expected]
    assert rows == []


def test_tags_out_of_order_are_read_as_kafka_does() -> None:
    _, rows = decode(TAGGED, b"\1\2" + tag(9, pack("h", 1)) + tag(4, b"\0"))
    assert (rows[0]["h"], rows[0]["b"]) == (1, False)


def test_elements_without_size_are_bounded() -> None:
    """A count of 2^31-1 elements that take no bytes must not become 2^31-1 rows."""
    made = message(field("A", "[]struct", "0+", field("B", "int8", "1+")), field("C", "bytes"), last=1)
    _, rows = decode(made, pack("i", 3) + pack("i", 3) + b"abc")
    assert rows == [{"a": [{"b": None}] * 3, "c": b"abc"}]


def test_a_bad_frame_leaves_nothing_behind() -> None:
    good = pack("i", 1) + pack("h", 3) + b"abc" + pack("ii", 1, 5) + pack("iii", 0, 0, 0)
    for at in range(len(good)):
        found, rows = decode(LISTS, good, good[:at], good, wanted=None)
        assert found.status.tolist() == [0, found.status[1], 0]
        assert found.status[1] != 0
        assert len(rows) == 2
        assert rows[0] == rows[1]
        assert found.messages[KEY, 0].rows.tolist() == [0, 2]


def test_every_truncation_of_every_tag_is_noticed() -> None:
    body = b"\1\4" + tag(0, b"\4abc") + tag(1, b"\2\0\0\0\1") + tag(5, b"\0\0\0\1\2q\0") + tag(77, b"unknown")
    assert status(TAGGED, body) == k.OK
    found, rows = decode(TAGGED, *(body[:at] for at in range(len(body))))
    assert (found.status != 0).all()
    assert rows == []


def test_positions_outside_of_the_bytes_are_refused() -> None:
    decoder = Decoder({(KEY, 0): None}, api(message(field("A", "bytes"))))
    data = np.zeros(16, np.uint8)
    begin = np.array([-1, 0, 8, 20, 2**62, -(2**63)])
    end = np.array([4, 17, 4, 24, 2**62 + 4, 2**63 - 1])
    found = decoder.decode(data, begin, end, np.zeros(6, np.int32))
    assert found.status.tolist() == [k.SHORT] * 6
    assert not found.messages


def test_no_program_no_rows() -> None:
    decoder = Decoder({(KEY, 0): None}, api(message()))
    found = decoder.decode(*laid([b""]), np.array([-1], np.int32))
    assert found.status.tolist() == [k.NO_PROGRAM]
    assert not decoder.decode(*laid([]), np.zeros(0, np.int32)).messages


# the net below


def test_an_address_outside_of_the_program_raises_instead_of_reading() -> None:
    """numba's own bounds check is on: a broken program cannot read beyond its arrays."""
    one = np.zeros(1, np.int64)
    data = np.zeros(4, np.uint8)
    for address in (1, 1 << 40):
        programs = np.array([[address, address, 0, 0]], np.int64)
        layouts = Layouts(programs, np.zeros(k.STRIDE, np.int64), np.zeros(3, np.int64))
        bodies = Bodies(one, one + 4, np.zeros(1, np.int32), np.zeros(1, np.int8))
        stack = np.zeros(100, np.int64)
        with pytest.raises(IndexError):
            count(
                data, bodies, layouts, np.zeros(2, np.int64), np.zeros(2, np.int64), stack, np.zeros(4, np.int32), data,
                np.zeros((0, 3), np.int64), one[:0],
            )  # fmt: skip
        memory = ColumnMemory(data, data.view(np.int16), data.view(np.int32), one, np.zeros(2, np.uint8))
        with pytest.raises(IndexError):
            fill(data, bodies, layouts, one, np.zeros(3, np.int64), np.zeros(2, np.int64), stack, memory)


def test_a_column_outside_of_the_buffer_raises_instead_of_writing() -> None:
    one = np.zeros(1, np.int64)
    data = np.zeros(8, np.uint8)
    rows = np.zeros(2 * k.STRIDE, np.int64)
    rows[0], rows[k.STRIDE], rows[k.STRIDE + 2] = k.F_INT32, k.F_STOP, -1
    layouts = Layouts(np.zeros((1, 4), np.int64), rows, np.zeros(3, np.int64))
    bodies = Bodies(one, one + 4, np.zeros(1, np.int32), np.zeros(1, np.int8))
    views = data.view(np.int16), data.view(np.int32), data.view(np.int64)
    memory = ColumnMemory(data, *views, np.zeros(2, np.uint8))
    for base in (2, 1 << 50):
        with pytest.raises(IndexError):
            fill(
                data, bodies, layouts, one, np.array([base, -1, 0]), np.zeros(2, np.int64), np.zeros(100, np.int64),
                memory,
            )  # fmt: skip


@kernel("u1[:] i8 i8 i8 SKIM -> i8")
def _tried(s: Any, begin: Any, end: Any, program: Any, skim: Any) -> Any:
    found = 0
    for at in range(begin, end + 1):
        if consumes(s, begin, at, program, skim) == 0:
            found = at
    return found


@kernel("u1[:] i8 i8 i8 SKIM -> i8")
def _asked(s: Any, begin: Any, end: Any, program: Any, skim: Any) -> Any:
    return consumes(s, begin, end, program, skim)


@pytest.mark.jit
def test_other_kernels_can_ask_whether_a_body_fits() -> None:
    made = message(field("ErrorCode", "int16"), field("S", "string"), older=(field("S", "string"), field("B", "int8")))
    decoder = Decoder({}, api(message(), made))
    skim = decoder.skim()
    data = np.frombuffer(pack("hh", 7, 2) + b"ab" + b"zzz", np.uint8).copy()
    assert _tried(data, 0, len(data), decoder.table[KEY, 0, RESPONSE], skim) == 6
    assert _tried(data, 0, 6, decoder.table[KEY, 0, RESPONSE], skim) == 6
    assert skim.seen[:3].tolist() == [7, 7, 1]
    old = np.frombuffer(pack("h", 1) + b"xy", np.uint8).copy()
    assert _asked(old, 0, 4, decoder.table[KEY, 0, RESPONSE], skim) == k.OK, "the older layout fits"
    assert _asked(old, 0, 3, decoder.table[KEY, 0, RESPONSE], skim) != k.OK
    assert _asked(old, 0, 3, -1, skim) == k.NO_PROGRAM
