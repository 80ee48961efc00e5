"""The decoder: what comes out of many bodies at once, and ways through it."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kdissect.kafka.exchanges import messages
from kdissect.kafka.exchanges.messages import Decoder
from kdissect.problems import UsageError
from kdissect.schema import library, opcodes
from tests.schema.made import KEY, api, decode, field, laid, message, pack

TOPICS = message(
    field("Throttle", "int32"),
    field(
        "Topics", "[]struct", "0+", field("Name", "string"),
        field("Partitions", "[]struct", "0+", field("Index", "int32"), field("Replicas", "[]int32")), null="0+",
    ),
)  # fmt: skip


def body(throttle: int, topics: list[tuple[str, list[tuple[int, list[int]]]]] | None) -> bytes:
    out = pack("ii", throttle, -1 if topics is None else len(topics))
    for name, partitions in topics or ():
        out += pack("h", len(name)) + name.encode() + pack("i", len(partitions))
        for index, replicas in partitions:
            out += pack("ii", index, len(replicas)) + b"".join(pack("i", replica) for replica in replicas)
    return out


BODIES = [
    body(1, [("a", [(0, [1, 2]), (1, [])]), ("b", [])]),
    body(2, None),
    body(3, []),
    body(4, [("c", [(7, [3])])]),
]


def test_flat_values_and_whose_they_are() -> None:
    made = decode(TOPICS, *BODIES)[0].messages[KEY, 0]
    assert made.flat("throttle").to_pylist() == [1, 2, 3, 4]
    assert made.flat("topics.name").to_pylist() == ["a", "b", "c"]
    assert made.parents("topics").tolist() == made.parents("topics.name").tolist() == [0, 0, 3]
    assert made.flat("topics.partitions.index").to_pylist() == [0, 1, 7]
    assert made.parents("topics.partitions").tolist() == [0, 0, 2]
    assert made.owners("topics.partitions").tolist() == [0, 0, 3]
    assert made.flat("topics.partitions.replicas").to_pylist() == [1, 2, 3]
    assert made.parents("topics.partitions.replicas").tolist() == [0, 0, 2]
    assert made.owners("topics.partitions.replicas").tolist() == [0, 0, 3]
    assert made.owners("throttle").tolist() == [0, 1, 2, 3]
    for path in ("nothing", "topics.nothing", "topics.name.x"):
        with pytest.raises(KeyError):
            made.flat(path)
    with pytest.raises(KeyError, match="no list"):
        made.parents("throttle")


def test_columns_that_too_much_would_need_come_in_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = BODIES * 5
    _, whole = decode(TOPICS, *bodies)
    monkeypatch.setattr(messages, "MAX_BATCH_BYTES", 500)
    found, rows = decode(TOPICS, *bodies, BODIES[0][:-1])
    made = found.messages[KEY, 0]
    assert len(made.batches) > 1
    assert rows == whole
    assert made.table().to_pylist() == whole
    assert made.rows.tolist() == list(range(20))
    assert found.status.tolist() == [0] * 20 + [opcodes.SHORT]
    assert made.owners("topics").tolist() == [row for row in range(20) for _ in whole[row]["topics"] or ()]


def test_a_body_whose_columns_are_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_BATCH_BYTES", 2000)
    monkeypatch.setattr(messages, "MAX_BODY_BYTES", 3000)
    huge = body(9, [("x", [(n, []) for n in range(1000)])])
    found, rows = decode(TOPICS, BODIES[0], huge, BODIES[3])
    assert found.status.tolist() == [0, opcodes.TOO_LARGE, 0]
    assert [row["throttle"] for row in rows] == [1, 4]
    assert found.messages[KEY, 0].rows.tolist() == [0, 2]


def test_several_message_types_at_once_keep_their_order() -> None:
    request, response = message(field("A", "int8")), message(field("B", "int16"))
    decoder = Decoder({(KEY, 0): None, (KEY, 1): None}, api(request, response))
    ids = decoder.table[KEY, 0]
    bodies = [b"\1", b"\0\2", b"\3", b"!!!", b"\0\4", b"\5"]
    found = decoder.decode(*laid(bodies), ids[[0, 1, 0, 0, 1, 0]])
    assert found.messages[KEY, 0].batch.to_pylist() == [{"a": 1}, {"a": 3}, {"a": 5}]
    assert found.messages[KEY, 0].rows.tolist() == [0, 2, 5]
    assert found.messages[KEY, 1].batch.to_pylist() == [{"b": 2}, {"b": 4}]
    assert found.messages[KEY, 1].rows.tolist() == [1, 4]


def test_message_types_that_nobody_wants_are_checked_only() -> None:
    decoder = Decoder({(KEY, 1): None}, api(message(field("A", "int8")), message()))
    found = decoder.decode(*laid([b"\1", b"\1\2"]), decoder.table[KEY, 0][[0, 0]])
    assert found.status.tolist() == [0, opcodes.TRAILING]
    assert not found.messages


def test_unknown_apis_and_paths_are_refused_at_once() -> None:
    with pytest.raises(UsageError, match="key 8"):
        Decoder({(8, 0): None}, api(message()))
    with pytest.raises(UsageError, match="nonsense"):
        Decoder({(KEY, 0): {"nonsense"}}, api(message()))


def test_columns_are_slices_of_one_buffer() -> None:
    made = decode(TOPICS, *BODIES)[0].messages[KEY, 0]

    def addresses(array: pa.Array) -> list[int]:
        return [buffer.address for buffer in array.buffers() if buffer is not None and buffer.size]

    found = [address for column in made.batch.columns for address in addresses(column)]
    assert max(found) - min(found) < 10_000


# one version number, two layouts

NEW = (field("Index", "int32"), field("Leader", "int32"), field("Epoch", "int32"), field("Next", "[]int32"))
OLD = (NEW[0], field("Replica", "int32"), *NEW[1:])
DRIFT = message(field("Parts", "[]struct", "0+", *NEW), older=(field("Parts", "[]struct", "0+", *OLD),))


def test_the_layout_that_fits_is_taken() -> None:
    new = pack("i", 1) + pack("iiii", 1, 2, 3, 1) + pack("i", 9)
    old = pack("i", 1) + pack("iiiii", 1, 77, 2, 3, 1) + pack("i", 9)
    found, rows = decode(DRIFT, new, old, pack("i", 0), b"!")
    assert found.status.tolist() == [0, 0, 0, opcodes.SHORT]
    assert found.variant.tolist() == [0, 1, 0, 0]
    assert found.ambiguous.tolist() == [False] * 4
    assert rows[0] == {"parts": [{"index": 1, "leader": 2, "epoch": 3, "next": [9], "replica": None}]}
    assert rows[1] == {"parts": [{"index": 1, "leader": 2, "epoch": 3, "next": [9], "replica": 77}]}


@pytest.mark.parametrize("wanted", [None, {"parts.index"}, frozenset()])
def test_bodies_that_fit_both_layouts_and_mean_different_things_are_ambiguous(wanted: Any) -> None:
    both = pack("i", 1) + pack("iiii", 1, 2, 3, 1) + pack("i", 0)
    nothing = pack("i", 0)
    found, _ = decode(DRIFT, both, nothing, wanted=wanted)
    assert found.status.tolist() == [0, 0]
    assert found.variant.tolist() == [0, 0]
    assert found.ambiguous.tolist() == [True, False]


# what is known without decoding


def test_ids_and_newest_versions() -> None:
    decoder = Decoder({}, api(message(last=3), message(last=2)))
    assert (decoder.newest(KEY, 0), decoder.newest(KEY, 1), decoder.newest(8, 0), decoder.newest(999, 0)) == (
        3,
        2,
        -1,
        -1,
    )
    assert decoder.identity(int(decoder.table[KEY, 2, 1])) == (KEY, 2, 1, 0)
    assert decoder.table.shape == (128, 32, 2)
    assert (decoder.table[KEY, 4:] == -1).all()
    assert decoder.flexible.dtype == np.int16
    assert (decoder.flexible == 32767).all()


def test_threads_share_a_decoder() -> None:
    made = message(field("A", "int32"), field("S", "string", "1+"), last=20)
    decoder = Decoder({(KEY, 0): None}, api(made))
    bodies = [pack("i", 5)] + [pack("ih", 5, 1) + b"x"] * 20
    wrong: list[object] = []

    def work(start: int) -> None:
        for version in [*range(start, 21), *range(start)]:
            found = decoder.decode(*laid([bodies[version]]), decoder.table[KEY, [version], 0])
            rows = found.messages[KEY, 0].batch.to_pylist()
            if rows != [{"a": 5, "s": "x" if version else None}]:
                wrong.append((version, rows))

    threads = [threading.Thread(target=work, args=(start,)) for start in (0, 7, 14)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_compiled_layouts_are_kept_and_damaged_copies_are_not_used(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    apis = api(TOPICS)
    asked = []

    def parse() -> Any:
        asked.append(1)
        return apis

    first = library.load_library("digest", parse)
    again = library.load_library("digest", parse)
    assert len(asked) == 1
    for name in ("rows", "tags", "programs", "identity", "alternative", "table", "newest", "flexible"):
        assert np.array_equal(getattr(first, name), getattr(again, name))
        assert getattr(first, name).dtype == getattr(again, name).dtype
    library.load_library("another", parse)
    assert len(asked) == 2
    files = sorted((tmp_path / "kdissect" / "layouts").iterdir())
    assert len(files) == 2
    for damage in (b"", b"x" * 40, files[0].read_bytes()[:-1]):
        for file in files:
            file.write_bytes(damage)
        library.load_library("digest", parse)
    assert len(asked) == 5


def test_a_cache_folder_that_cannot_be_written_is_no_error(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert library.load_library("digest", lambda: api(TOPICS)).newest[KEY, 0] == 0


API_VERSIONS = 18


def asks(version: int) -> bytes:
    """An ApiVersions request, from version 5 on with the cluster and the node that it is meant for."""
    meant = b"\x02c" + pack("i", 7) if version >= 5 else b""
    return b"\x04app" + b"\x041.0" + meant + b"\0"


def test_sparse_types_make_rows_only_of_versions_with_wanted_fields() -> None:
    """Versions stand side by side: rows and the frames that they are of belong together all the same."""
    kind, versions = (API_VERSIONS, 0), [3, 5, 3, 5, 4]
    bodies = [asks(version) for version in versions]
    ends = np.cumsum([len(one) for one in bodies])
    s = np.frombuffer(b"".join(bodies), np.uint8)
    for sparse, rows, nodes in (((), [0, 1, 2, 3, 4], [None, 7, None, 7, None]), ((kind,), [1, 3], [7, 7])):
        decoder = Decoder({kind: frozenset(["node_id"])}, sparse=sparse)
        program = decoder.table[API_VERSIONS, versions, 0].astype(np.int32)
        decoded = decoder.decode(s, ends - [len(one) for one in bodies], ends, program)
        assert not decoded.status.any()
        made = decoded.messages[kind]
        assert made.rows.tolist() == rows
        assert made.flat("node_id").to_pylist() == nodes
        assert decoder.scattered[program].all()


@pytest.mark.parametrize("piece", [1, 7, 100, 300, 5000])
def test_bytes_that_lie_apart_are_brought_where_they_are_looked_at(piece: int) -> None:
    """A Fetch response in pieces, which stand in `s` the other way round behind where it should be."""
    blob = bytes(range(256)) * 40
    partition = pack("ih", 0, 0) + pack("q", 9) + pack("i", len(blob)) + blob
    whole = pack("i", 1) + b"\0\5topic" + pack("i", 3) + partition * 3
    for body, status in ((whole, 0), (whole[:-1], opcodes.SHORT), (whole + b"x", opcodes.TRAILING)):
        cuts = [body[at : at + piece] for at in range(0, len(body), piece)]
        s = np.zeros(2 * len(body), np.uint8)
        apart, at, end = [], 0, len(s)
        for cut in cuts:
            end -= len(cut)
            s[end : end + len(cut)] = np.frombuffer(cut, np.uint8)
            apart.append([at, len(cut), end])
            at += len(cut)
        decoder = Decoder()
        program = decoder.table[1, [0], 1].astype(np.int32)
        decoded = decoder.decode(s, np.array([0]), np.array([len(body)]), program, np.array(apart))
        assert decoded.status.tolist() == [status]
        assert (s[: len(body)] != np.frombuffer(body, np.uint8)).any() == (piece < len(blob) or len(cuts) > 1)


FETCHED = ("responses.topic", "responses.partitions.high_watermark", "responses.partitions.records")


def fetched() -> bytes:
    """A Fetch response of version 5, with a long name, aborted transactions and large record sets."""
    records = bytes(range(256)) * 40
    aborted = b"".join(pack("qq", i, 2 * i) for i in range(200))
    one = pack("ih", 0, 0) + pack("qqq", 9, 8, 7) + pack("i", 200) + aborted + pack("i", len(records)) + records
    names = ("short", "long" * 2000)
    topics = b"".join(pack("h", len(name)) + name.encode() + pack("i", 3) + one * 3 for name in names)
    return pack("ii", 0, len(names)) + topics


def described() -> bytes:
    """A Metadata response of version 8, with many replicas of a partition."""
    replicas = pack("i", 500) + b"".join(pack("i", i) for i in range(500))
    partition = pack("hiii", 0, 3, 1, 2) + replicas + replicas + pack("i", 0)
    topic = pack("h", 0) + pack("h", 5) + b"topic" + b"\0" + pack("i", 2) + partition * 2 + pack("i", 0)
    return pack("ii", 0, 0) + pack("h", -1) + pack("ii", 1, 1) + topic + pack("i", 0)


def tagged() -> bytes:
    """An ApiVersions response of version 3 with a long tag that no schema knows."""
    return pack("h", 0) + b"\1" + pack("i", 0) + b"\1" + b"\x63" + b"\xd0\x0f" + bytes(i % 251 for i in range(2000))


@pytest.mark.parametrize("piece", [7, 100, 1000, 5000])
@pytest.mark.parametrize(
    ("key", "version", "body", "wanted"),
    [(1, 5, fetched(), FETCHED), (1, 5, fetched(), None), (3, 8, described(), None), (18, 3, tagged(), None)],
)
def test_columns_of_bodies_whose_pieces_lie_apart(
    key: int, version: int, body: bytes, wanted: tuple[str, ...] | None, piece: int
) -> None:
    """They are those of bodies in one piece, whatever was asked for; what nobody asked for stays where it is."""
    whole = np.frombuffer(body, np.uint8)
    s = np.zeros(2 * len(body), np.uint8)
    apart, end = [], len(s)
    for at in range(0, len(body), piece):
        cut = whole[at : at + piece]
        end -= len(cut)
        s[end : end + len(cut)] = cut
        apart.append([at, len(cut), end])
    decoder = Decoder({(key, 1): wanted})
    program = decoder.table[key, [version], 1].astype(np.int32)
    assert decoder.scattered[program].all()
    places = np.array([0]), np.array([len(body)])
    expected, found = (
        decoder.decode(data, *places, program, *lying) for data, lying in ((whole, ()), (s, (np.array(apart),)))
    )
    assert expected.status.tolist() == found.status.tolist() == [0]
    assert expected.messages[key, 1].batches == found.messages[key, 1].batches
    assert (s[: len(body)] == whole).all() == (key != 1)


def test_bodies_in_which_positions_are_asked_for_lie_in_one_piece() -> None:
    """Whoever has a position reads there afterwards."""
    for asked in ("responses.partitions.records@", "responses.partitions.records_at"):
        decoder = Decoder({(1, 1): frozenset([asked])})
        assert not decoder.scattered[decoder.table[1, [5], 1]].any()
        assert decoder.scattered[decoder.table[1, [5], 0]].all()
