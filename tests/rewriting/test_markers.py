"""No marker is left after `redact` and `redact --names`, wherever it stood; `--check` finds each where it is left."""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import kdissect
from kdissect.engine.extracts.checking import Checked
from kdissect.rewriting.standins import StandIns
from kdissect.rewriting.verification.readable import MOST
from kdissect.schema.configurations import load_configurations
from kdissect.schema.model import Field
from tests import sown
from tests.oracle.pcap import framed, pcap
from tests.sown import FRAGMENT, MARKER, Conversation, Packets, Sower

CONFIGURATIONS = 30
"""In a message."""
MARKER_TEXT = re.compile(MARKER.pattern.decode())
DAMAGES: dict[str, Callable[[list[sown.Talk]], tuple[Packets, int]]] = {
    "whole": lambda talks: (sown.packets(talks), 1 << 16),
    **{f"lossy {n}": lambda talks, n=n: (sown.lossy(sown.packets(talks), n), 1 << 16) for n in range(4)},
    **{f"late {n}": lambda talks, n=n: (sown.late(sown.packets(talks), n), 1 << 16) for n in range(3)},
    **{f"without {n}": lambda talks, n=n: (sown.without_one(talks, n), 1 << 16) for n in range(6)},
    **{f"cut at {n}": lambda talks, n=n: (sown.packets(talks), n) for n in (60, 66, 71, 80, 100, 150)},
    "cut and lossy": lambda talks: (sown.lossy(sown.packets(talks), 9), 80),
    "late and lossy": lambda talks: (sown.late(sown.lossy(sown.packets(talks), 9), 9), 1 << 16),
    "sent twice": lambda talks: ([packet for packet in sown.packets(talks) for _ in range(2)], 1 << 16),
    "begun late": lambda talks: ([p for talk in talks for p in talk.packets[4:]], 1 << 16),
}
"""What may happen to a capture, with its snap length."""


@cache
def messages() -> tuple[Sower, list[sown.Talk]]:
    """Every message with markers, and who sowed them."""
    sower = Sower()
    return sower, sown.messages(sower)


@cache
def logins() -> list[sown.Talk]:
    return sown.logins(Sower())


def stand_ins() -> StandIns:
    return StandIns(bytes(range(32)))


def redacted(data: bytes, folder: Path, names: StandIns | None = None) -> bytes:
    source, target = folder / "in.pcap", folder / "out.pcap"
    source.write_bytes(data)
    kdissect.open(source).redact(target, names=names)
    return target.read_bytes()


def checked(data: bytes, folder: Path, names: StandIns | None = None) -> Checked:
    path = folder / "checked.pcap"
    path.write_bytes(data)
    return kdissect.open(path).check(names)


def fragments(safe: bytes, names: StandIns | None) -> list[bytes]:
    """Beginnings of markers, but for those that are stand-ins by chance."""
    words = [] if names is None else [word for word in names.taken if FRAGMENT.search(word)]
    for word in words:
        safe = safe.replace(word, bytes(len(word)))
    return FRAGMENT.findall(safe)


def said(result: Checked) -> str:
    return "\n".join(one.text for one in result.texts)


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_marker_of_any_message_is_left(damage: str, tmp_path: Path) -> None:
    sower, talks = messages()
    packets, snap = DAMAGES[damage](talks)
    data = pcap(packets, snap)
    planted = set(MARKER.findall(data))
    assert planted or damage == "cut at 60"
    left = set(MARKER.findall(redacted(data, tmp_path)))
    assert left <= sower.named(), [sower.fields[one] for one in sorted(left - sower.named())[:5]]
    names = stand_ins()
    safe = redacted(data, tmp_path, names)
    assert fragments(safe, names) == []
    result = checked(safe, tmp_path, names)
    assert all(one.stays for one in result.texts), [one for one in result.texts if not one.stays][:5]
    assert result.clean or damage not in ("whole", "late 0", "sent twice")


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_marker_of_a_login_is_left(damage: str, tmp_path: Path) -> None:
    """Not even the first bytes of a token, which were taken for a request's header."""
    data = pcap(*DAMAGES[damage](logins()))
    planted = FRAGMENT.findall(data)
    assert planted or damage == "cut at 60"
    assert not checked(data, tmp_path).clean
    for names in (None, stand_ins()):
        safe = redacted(data, tmp_path, names)
        assert fragments(safe, names) == []
        result = checked(safe, tmp_path, names)
        assert all(one.stays for one in result.texts), result


def test_check_finds_every_marker(tmp_path: Path) -> None:
    """Of a capture that nobody redacted, and of one that was redacted without names, checked with a key file."""
    sower, talks = messages()
    data = pcap(sown.packets(talks))
    result = checked(data, tmp_path)
    assert set(sower.fields) == {one.encode() for one in MARKER_TEXT.findall(said(result))}
    telling = {one.text for one in result.texts if not one.stays}
    assert not {one.decode() for one in set(sower.fields) - sower.named()} - {
        one for text in telling for one in MARKER_TEXT.findall(text)
    }
    with_names = redacted(data, tmp_path)
    assert checked(with_names, tmp_path).clean
    result = checked(with_names, tmp_path, stand_ins())
    kept = {one.decode() for one in MARKER.findall(with_names)}
    assert kept
    assert kept <= {one.text for one in result.texts if not one.stays}


FORMS = (
    b"%b", b"PLAINTEXT://%b:9092", b"/data/%b", b"User:%b", b"https://svc:%b@host:8080/x", b"%b,delete", b"1%b",
    b"true %b",
)  # fmt: skip
"""What values look like that hold somebody's words."""


KEYS = [*load_configurations(), *(f"listener.name.made.{name}" for name in load_configurations()), "my.plugin.token"]


def config_names(fields: tuple[Field, ...]) -> set[Field]:
    """Fields that name the configuration whose value stands beside them."""
    beside = {item.secret_by for item in fields}
    found = {item for item in fields if item.name in beside}
    return found.union(*(config_names(item.fields) for item in fields))


class Configured:
    """Fills a message with configurations of KEYS from the `first` on, and with what `value` gives for each."""

    def __init__(self, names: set[Field], first: int, value: Callable[[str], bytes]) -> None:
        self.names, self.value = names, value
        self.keys = iter(KEYS[first : first + CONFIGURATIONS])
        self.last = ""

    def text(self, item: Field | None) -> bytes:
        if item in self.names:
            self.last = next(self.keys, "retention.ms")
            return self.last.encode()
        return b"a" if item is None or item.secret_by is None else self.value(self.last)

    def count(self, item: Field) -> int:
        return CONFIGURATIONS if self.names & set(item.fields) and item.name != "Synonyms" else 1


def configurations(value: Callable[[str], bytes]) -> bytes:
    """A capture that says what `value` gives for each configuration of KEYS, in every message that holds values; each
    has as many of them as fit some packets."""
    talks = []
    apis = {key: api for key, api in kdissect.schema.index.load().apis.items() if key in (19, 32, 33, 44)}
    for (key, api), side in itertools.product(apis.items(), (0, 1)):
        names, versions = config_names(api.message(side).fields), api.message(side).versions
        for version in range(versions.first, versions.last + 1) if names else ():
            for first in range(0, len(KEYS), CONFIGURATIONS):
                one, made = Conversation(len(talks)), Configured(names, first, value)
                for which in (0, 1):
                    given = (made.text, made.count) if which == side else (lambda item: b"a", lambda item: 1)
                    one.say(which, sown.message(key, which, version, 1, *given))
                talks.append(one.talk)
    return pcap(sown.packets(talks))


def test_no_value_of_any_configuration_is_left_that_is_somebodys_word(tmp_path: Path) -> None:
    sower = Sower()
    data = configurations(lambda name: FORMS[len(sower.fields) % len(FORMS)] % sower(None))
    planted = set(sower.fields)
    assert len(planted) < MOST
    assert len(KEYS) > 900
    assert len(planted) > 10 * len(KEYS)
    for names in (None, stand_ins()):
        safe = redacted(data, tmp_path, names)
        assert MARKER.findall(safe) == []
        result = checked(safe, tmp_path, stand_ins())
        assert MARKER_TEXT.findall(said(result)) == []
    found = {one for text in checked(data, tmp_path).texts if not text.stays for one in MARKER_TEXT.findall(text.text)}
    assert found == {one.decode() for one in planted}


def test_harmless_values_stay(tmp_path: Path) -> None:
    words = {"boolean": b"TRUE", "double": b"0.125", "short": b"77", "int": b"77", "long": b"604800077"}

    def value(name: str) -> bytes:
        found = load_configurations().get(name)
        return (
            b"nothing" if found is None else words.get(found.type) or ",".join(sorted(found.values)).encode() or b"any"
        )

    data = configurations(value)
    safe = redacted(data, tmp_path)
    for word in (b"0.125", b"604800077", b"TRUE", b"compact,delete", b"createtime"):
        assert safe.count(word) <= data.count(word)
    assert safe.count(b"604800077") == data.count(b"604800077")
    assert safe.count(b"compact,delete") == data.count(b"compact,delete")
    assert b"createtime,logappendtime" not in safe, "one word, not a list"
    assert b"nothing" not in safe


def test_a_request_that_no_release_has_is_no_header(tmp_path: Path) -> None:
    """Unless it is answered: then its id is one."""
    one = Conversation(0)
    one.metadata(1)
    one.say(0, framed(struct.pack(">hh4sh", 200, 7, b"mk00", 6) + b"secret"))
    one.say(0, framed(struct.pack(">hh4sh", 1, 99, b"mk01", 6) + b"secret"))
    one.say(0, framed(struct.pack(">hhih", 1, 99, 77, 8) + b"answered" + b"\0" + b"secret" * 9))
    one.say(1, framed(struct.pack(">i", 77)))
    one.say(1, framed(b"mk02" + b"secret"))
    data = pcap(one.talk.packets)
    safe = redacted(data, tmp_path)
    assert FRAGMENT.findall(safe) == []
    assert b"secret" not in safe
    assert b"answered" in safe
    rows = kdissect.open(tmp_path / "out.pcap").table("exchanges").to_pylist()
    assert [(row["api_key"], row["correlation_id"], row["status"]) for row in rows if row["api_version"] == 99] == [
        (1, 77, "ok")
    ]
    assert len(rows) == 5
    assert b"answered" not in redacted(data, tmp_path, stand_ins())


def test_a_connection_of_one_request_that_no_release_has(tmp_path: Path) -> None:
    """In its copy that connection is no Kafka, and the check agrees."""
    one, other = Conversation(0), Conversation(1)
    one.say(0, framed(struct.pack(">hhih", 1, 99, 0, 6) + b"secret"))
    other.metadata(1)
    data = pcap([*one.talk.packets, *other.talk.packets])
    safe = redacted(data, tmp_path)
    assert kdissect.open(tmp_path / "in.pcap").table("exchanges").num_rows == 2
    assert b"secret" not in safe
    assert checked(safe, tmp_path).clean


@pytest.mark.parametrize("version", [3, 9])
def test_transactional_ids_of_damaged_requests(version: int, tmp_path: Path) -> None:
    """A Produce request keeps its acks, which stand behind a name."""
    sower = Sower()
    one = Conversation(0)
    one.metadata(1)
    one.say(0, sown.message(0, 0, version, 2, sower))
    one.metadata(3)
    data = pcap(one.talk.packets, 120)
    assert len(MARKER.findall(data)) > 2
    left = MARKER.findall(redacted(data, tmp_path))
    assert [item.name for item in map(sower.fields.get, left) if item is not None] == ["ClientId"]
    assert MARKER.findall(redacted(data, tmp_path, stand_ins())) == []
