"""The walker: every byte explained once, and a body that does not fit complained about at the right one."""

from __future__ import annotations

import random
import struct

import pytest

from kdissect.schema import index
from kdissect.schema.model import Message
from kdissect.schema.secrets import is_secret_config
from kdissect.schema.shape import ZERO_UUID, Shape, shape_of
from kdissect.schema.walker import Walked, WalkError, walk
from tests.oracle import kio_messages
from tests.schema.made import field, message, pack


def read(made: Message, body: bytes, version: int = 0) -> Walked:
    return walk(made, shape_of(made), version, body, pieces=True)


def fails(made: Message, body: bytes, version: int = 0) -> WalkError:
    with pytest.raises(WalkError) as caught:
        read(made, body, version)
    return caught.value


EVERYTHING = message(
    field("A", "int8"), field("B", "int16"), field("C", "int32"), field("D", "int64"), field("E", "uint16"),
    field("F", "uint32"), field("G", "float64"), field("H", "bool"), field("I", "uuid"), field("S", "string"),
    field("N", "string", null="0+"), field("R", "records", null="0+"), field("L", "[]int16"),
    field("T", "[]struct", "0+", field("X", "string"), field("Y", "int8"), null="0+"),
    field("M", "struct", "0+", field("Z", "int8"), null="1+"), last=1, flexible="1+",
)  # fmt: skip


def test_every_type_in_both_forms() -> None:
    scalars = pack("bhiqHId?", -1, -2, -3, -4, 65535, 2**32 - 1, 1.5, True) + bytes(15) + b"\1"
    old = scalars + pack("h", 1) + b"s" + pack("h", -1) + pack("i", 2) + b"rr" + pack("ihh", 2, 7, -7)
    old += pack("i", 1) + pack("h", 1) + b"x" + b"\5" + b"\7"
    new = scalars + b"\2s" + b"\0" + b"\3rr" + b"\3" + pack("hh", 7, -7) + b"\2" + b"\2x\5\0" + b"\1\7\0" + b"\0"
    for version, body in enumerate((old, new)):
        walked = read(EVERYTHING, body, version)
        assert walked.values == {
            "a": -1, "b": -2, "c": -3, "d": -4, "e": 65535, "f": 2**32 - 1, "g": 1.5, "h": True,
            "i": "A" * 21 + "Q", "s": "s", "n": None, "r_bytes": 2, "l": [7, -7],
            "t": [{"x": "x", "y": 5, "_tags": None}], "m": {"z": 7, "_tags": None}, "_tags": None,
        }  # fmt: skip
        covered(walked, body)
    assert [piece.path for piece in read(EVERYTHING, new, 1).pieces][11:] == [
        "r", "l", "l[0]", "l[1]", "t", "t[0]", "t[0].x", "t[0].y", "t[0]._tags", "m", "m.z", "m._tags", "_tags",
    ]  # fmt: skip


def covered(walked: Walked, body: bytes) -> None:
    """Pieces follow each other without a gap from the first byte to the last."""
    at = 0
    for piece in walked.pieces:
        assert piece.offset == at, piece
        at += piece.length
    assert at == len(body) == walked.end


def test_nulls_and_absence() -> None:
    body = bytes(46) + b"\1\0\0\1\0\xff\0"
    walked = read(EVERYTHING, body, 1)
    assert walked.values["i"] == ZERO_UUID
    assert [walked.values[name] for name in ("s", "n", "r_bytes", "l", "t", "m")] == ["", None, None, [], None, None]
    assert {piece.path: piece.note for piece in walked.pieces if piece.note} == {
        "n": "null", "r": "null", "t": "null", "m": "null",
    }  # fmt: skip


TAGGED = message(
    field("A", "int8"), field("K", "int32", tag=0, default=-1), field("S", "struct", "0+", field("P", "int8"), tag=3),
    field("U", "uuid", tag=4), field("L", "[]int8", tag=5), field("B", "bool", tag=6), field("G", "float64", tag=7),
    field("Y", "bytes", tag=8), field("X", "string", tag=9), flexible="0+",
)  # fmt: skip
ABSENT = {
    "a": 1, "k": -1, "s": {"p": 0, "_tags": None}, "u": ZERO_UUID, "l": [], "b": False, "g": 0.0, "y": b"", "x": "",
    "_tags": None,
}  # fmt: skip


def test_tags() -> None:
    assert read(TAGGED, b"\1\0").values == ABSENT
    body = b"\1\3" + b"\0\4" + pack("i", 9) + b"\1\2hi" + b"\3\2\5\0"
    walked = read(TAGGED, body)
    covered(walked, body)
    assert walked.values == ABSENT | {"k": 9, "s": {"p": 5, "_tags": None}, "_tags": [{"tag": 1, "bytes": b"hi"}]}
    assert [(piece.path, piece.value, piece.note) for piece in walked.pieces if piece.kind == "tag"] == [
        ("_tags[0]", 0, "k, 4 bytes"), ("_tags[1]", 1, "unknown, 2 bytes"), ("_tags[2]", 3, "s, 2 bytes"),
    ]  # fmt: skip


SECRET = message(
    field("P", "bytes", secret=True, null="0+"),
    field("Name", "string"),
    field("V", "string", secret_by="Name", null="0+"),
)


def test_credentials_are_lengths() -> None:
    walked = read(SECRET, pack("i", 3) + b"abc" + pack("h", 12) + b"ssl.password" + pack("h", 4) + b"hunt")
    assert walked.values == {"p": None, "p_bytes": 3, "name": "ssl.password", "v": None, "v_bytes": 4}
    assert [piece.value for piece in walked.pieces] == [None, "ssl.password", None]
    plain = read(SECRET, pack("i", -1) + pack("h", 12) + b"retention.ms" + pack("h", 4) + b"1000")
    assert plain.values == {"p": None, "p_bytes": None, "name": "retention.ms", "v": "1000", "v_bytes": 4}
    for name in (b"my.plugin.token", b""):  # no definition of Kafka's knows it
        unknown = read(SECRET, pack("i", -1) + pack("h", len(name)) + name + pack("h", 4) + b"hunt")
        assert (unknown.values["v"], unknown.values["v_bytes"]) == (None, 4)
        assert unknown.pieces[-1].value is None
        assert "hunt" not in repr(unknown)
    assert "abc" not in repr(walked.values)


@pytest.mark.parametrize(
    ("name", "secret"),
    [("ssl.keystore.password", True), ("listener.name.a.plain.sasl.jaas.config", True), ("ssl.keystore.key", True),
     ("delegation.token.secret.key", True), ("password.encoder.secret", True), ("ssl.key.password", True),
     ("sasl.oauthbearer.client.credentials.client.secret", True), ("cleanup.policy", False),
     ("ssl.keystore.location", False), ("ssl.keystore.type", False), ("password.encoder.key.length", False),
     ("password.encoder.iterations", False), ("segment.bytes", False), ("", False), (None, False)],
)  # fmt: skip
def test_secret_configurations(name: str | None, secret: bool) -> None:
    assert is_secret_config(name) is secret


def test_complaints_name_path_byte_and_need() -> None:
    made = message(field("T", "[]struct", "0+", field("N", "string"), field("P", "[]int32")))
    body = pack("i", 2) + pack("h", 1) + b"a" + pack("ii", 1, 7) + pack("h", 9) + b"ab"
    error = fails(made, body)
    assert (error.path, error.at, error.text) == ("t[1].n", 17, "string needs 9 bytes, 2 left")
    assert error.values == {"t": [{"n": "a", "p": [7]}, {"n": None, "p": None}]}, "what was read before"
    assert error.pieces[-1].path == "t[1]"
    error = fails(made, pack("i", 2**31 - 1) + bytes(100))
    assert (error.path, error.at, error.text) == ("t", 0, "a count of 2147483647, which 100 bytes cannot hold")


LIES: list[tuple[Message, bytes, int, str]] = [
    (message(field("A", "int32")), b"\0\0", 0, "int32 needs 4 bytes, 2 left"),
    (message(field("A", "int8")), b"", 0, "int8 needs 1 byte, none left"),
    (message(field("A", "int8")), b"\0\0\0", 1, "2 bytes left over behind the last field"),
    (message(field("A", "string")), pack("h", -1), 0, "null, which may not be"),
    (message(field("A", "string", null="0+")), pack("h", -2), 0, "the length is -2"),
    (message(field("A", "bytes")), pack("i", -(2**31)), 0, "the length is -2147483648"),
    (message(field("A", "string"), flexible="0+"), b"\0\0", 0, "null, which may not be"),
    (message(field("A", "string"), flexible="0+"), b"\xff" * 10, 0, "more than 5 bytes"),
    (message(field("A", "string"), flexible="0+"), b"\xff\xff", 2, "the length needs 1 byte, none left"),
    (message(field("A", "[]int8")), pack("i", -1), 0, "null, which may not be"),
    (message(field("A", "[]int8"), flexible="0+"), b"\xff\xff\xff\xff\x0f", 0, "a count of 4294967294"),
    (message(field("A", "[]struct", "0+", field("X", "int8", "1+")), last=1), pack("i", 9), 0, "a count of 9"),
    (message(field("A", "struct", "0+", field("X", "int8"), null="0+")), b"\2\0", 0, "neither 1 nor 255"),
    (message(flexible="0+"), b"\x7f", 0, "127 tagged fields, which 0 bytes cannot hold"),
    (message(flexible="0+"), b"\1\0\5a", 3, "tag 0 needs 5 bytes, 1 left"),
    (message(field("A", "int8", tag=0), flexible="0+"), b"\1\0\2ab", 4, "tag 0 is 1 byte longer than its value"),
    (message(field("A", "int16", tag=0), flexible="0+"), b"\1\0\1ab", 3, "int16 needs 2 bytes, 1 left"),
    (message(field("A", "int8", tag=0), flexible="0+"), b"\2\0\1a\0\1a", 4, "tag 0 comes twice"),
]


@pytest.mark.parametrize(("made", "body", "at", "text"), LIES)
def test_lies_are_told_where_they_are(made: Message, body: bytes, at: int, text: str) -> None:
    error = fails(made, body)
    assert text in error.text
    assert error.at == at
    assert f"at byte {at}: " in str(error)


def test_text_that_is_no_text() -> None:
    walked = read(message(field("S", "string")), pack("h", 2) + b"\xff\xfe")
    assert walked.values == {"s": "\ufffd\ufffd"}


def test_a_part_of_some_bytes() -> None:
    made = message(field("A", "int8"))
    assert walk(made, shape_of(made), 0, b"xx\7yy", offset=2, exact=False).end == 3
    with pytest.raises(WalkError, match="2 bytes left over"):
        walk(made, shape_of(made), 0, b"xx\7yy", offset=2)


SAMPLES = [(1, 0, 18), (1, 1, 17), (3, 1, 12), (9, 1, 9), (11, 0, 5), (36, 0, 2), (69, 1, 1), (78, 0, 2), (88, 1, 0)]


@pytest.mark.parametrize("which", SAMPLES)
def test_a_body_cut_at_any_byte_fits_nowhere(which: tuple[int, int, int]) -> None:
    key, side, version = which
    body, _ = kio_messages.generate(key, side, version, 5)
    body = body[:600] if len(body) > 600 else body
    made = index.load().apis[key].message(side)
    whole = shape_of(made)
    for end in range(len(body)):
        error = attempt(made, whole, version, body[:end])
        assert isinstance(error, WalkError), f"{end} of {len(body)} bytes fit"
        assert 0 <= error.at <= end
        assert error.pieces == [] or error.pieces[-1].offset + error.pieces[-1].length <= end


def attempt(made: Message, whole: Shape, version: int, body: bytes) -> Walked | WalkError:
    try:
        return walk(made, whole, version, body, pieces=True)
    except WalkError as error:
        return error


@pytest.mark.parametrize("which", SAMPLES)
def test_a_damaged_body_is_read_or_refused_but_never_more(which: tuple[int, int, int]) -> None:
    key, side, version = which
    body, _ = kio_messages.generate(key, side, version, 6)
    made, pick = index.load().apis[key].message(side), random.Random(8)
    whole = shape_of(made)
    for _ in range(300):
        damaged = bytearray(body[:2000])
        for _ in range(pick.choice((1, 2, 8))):
            damaged[pick.randrange(len(damaged))] = pick.choice((0, 1, 127, 128, 255, pick.randrange(256)))
        if len(damaged) > 8 and pick.random() < 0.3:
            at = pick.randrange(len(damaged) - 4)
            struct.pack_into(">i", damaged, at, pick.choice((-1, 2**31 - 1, -(2**31), 10**6)))
        found = attempt(made, whole, version, bytes(damaged))
        if isinstance(found, Walked):
            covered(found, bytes(damaged))
        else:
            assert 0 <= found.at <= len(damaged)
