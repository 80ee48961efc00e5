"""The kernels against kio, which encodes, and against the walker, which reads the same schema another way."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from kdissect.kafka.exchanges.messages import Decoder
from kdissect.schema import index
from kdissect.schema.filling import fill
from kdissect.schema.shape import shape_of
from kdissect.schema.vm import count
from kdissect.schema.walker import WalkError, walk
from tests.kafka.kio_bodies import Kind, classes, generate
from tests.schema.made import laid

pytestmark = pytest.mark.oracle

MANGLINGS = 3
"""Rounds of damage in the default run; `-m whole` has more."""


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    """All fields of all messages."""
    return Decoder({(key, side): None for key in index.load().apis for side in (0, 1)})


def programs(decoder: Decoder, kinds: list[Kind]) -> Any:
    return np.array([decoder.table[kind] for kind in kinds], np.int32)


def rows_of(decoder: Decoder, kinds: list[Kind], bodies: list[bytes]) -> tuple[Any, dict[int, dict[str, Any]]]:
    """(what was decoded, rows by body)."""
    found = decoder.decode(*laid(bodies), programs(decoder, kinds))
    rows = {}
    for made in found.messages.values():
        made.batch.validate(full=True)
        rows.update(zip(made.rows.tolist(), made.batch.to_pylist(), strict=True))
    assert sorted(rows) == np.flatnonzero(found.status == 0).tolist()
    return found, rows


def walked(kind: Kind, body: bytes) -> dict[str, Any] | None:
    """The walker's values by the first layout that fits, None when none does."""
    key, version, side = kind
    message = index.load().apis[key].message(side)
    for fields in index.layouts(message, version):
        try:
            return walk(message, shape_of(message), version, body, fields=fields).values
        except WalkError:
            continue
    return None


def assert_equal(expected: Any, actual: Any, path: str) -> None:
    """What kio encoded is there; everything else, of other versions, is null."""
    if isinstance(expected, dict):
        for name, value in actual.items():
            if name in expected:
                assert_equal(expected[name], value, f"{path}.{name}")
            else:
                assert value is None, f"{path}.{name}"
        assert expected.keys() <= actual.keys(), path
    elif isinstance(expected, list) and isinstance(actual, list):
        assert len(expected) == len(actual), path
        for at, (one, other) in enumerate(zip(expected, actual, strict=True)):
            assert_equal(one, other, f"{path}[{at}]")
    else:
        assert expected == actual, path


def compare(decoder: Decoder, seeds: range) -> None:
    kinds = [kind for kind in classes() for _ in seeds]
    made = [generate(kind, seed) for kind in classes() for seed in seeds]
    found, rows = rows_of(decoder, kinds, [body for body, _ in made])
    assert not found.status.any(), {kinds[at] for at in np.flatnonzero(found.status)}
    for at, (kind, (body, expected)) in enumerate(zip(kinds, made, strict=True)):
        assert_equal(expected, rows[at], f"{kind} ")
        assert rows[at] == walked(kind, body), kind


def test_every_message_as_kio_encodes_it(decoder: Decoder) -> None:
    assert len(classes()) == 604
    compare(decoder, range(1))


def test_one_kernel_serves_every_api(decoder: Decoder) -> None:
    """However many APIs there are, two kernels are compiled, once: layouts are data to them."""
    kinds = list(classes())
    rows_of(decoder, kinds, [generate(kind, 1)[0] for kind in kinds])
    assert (len(count.signatures), len(fill.signatures)) == (1, 1)


@pytest.mark.whole
def test_twenty_of_every_message_as_kio_encodes_it(decoder: Decoder) -> None:
    compare(decoder, range(100, 120))


def mangled(body: bytes, chance: random.Random) -> bytes:
    """A few bytes changed, mostly to the ends of ranges; now and then cut short, or with more at the end."""
    out = bytearray(body)
    for _ in range(chance.randrange(1, 4) if out else 0):
        out[chance.randrange(len(out))] = chance.choice((0, 1, 2, 127, 128, 255, chance.randrange(256)))
    if out and chance.random() < 0.2:
        del out[chance.randrange(len(out)) :]
    return bytes(out) + (b"\0" if chance.random() < 0.05 else b"")


def compare_damaged(decoder: Decoder, rounds: range) -> None:
    """Whatever the bytes, kernels and walker say the same, and so do programs without columns."""
    skimming = Decoder({})
    kinds = list(classes())
    whole = [generate(kind, 0)[0] for kind in kinds]
    for seed in rounds:
        chance = random.Random(seed)
        bodies = [mangled(body, chance) for body in whole]
        found, rows = rows_of(decoder, kinds, bodies)
        for at, (kind, body) in enumerate(zip(kinds, bodies, strict=True)):
            assert repr(rows.get(at)) == repr(walked(kind, body)), (kind, body.hex())
        skimmed = skimming.decode(*laid(bodies), programs(skimming, kinds))
        for name in ("status", "error_code", "error_first", "error_count", "throttle_ms", "variant"):
            assert np.array_equal(getattr(found, name), getattr(skimmed, name)), name


def test_damaged_bodies_are_judged_as_the_walker_does(decoder: Decoder) -> None:
    compare_damaged(decoder, range(MANGLINGS))


@pytest.mark.whole
def test_many_damaged_bodies_are_judged_as_the_walker_does(decoder: Decoder) -> None:
    compare_damaged(decoder, range(1000, 1100))


def test_no_beginning_of_a_body_is_a_body(decoder: Decoder) -> None:
    """Cut at every byte, a message never fits, but where the version number had a shorter layout too."""
    drifted = {decoder.identity(int(at))[:3] for at in np.flatnonzero(decoder.library.alternative >= 0)}
    kinds, bodies = [], []
    for kind in classes():
        body = generate(kind, 0)[0][:400]
        kinds += [kind] * len(body)
        bodies += [body[:at] for at in range(len(body))]
    found = decoder.decode(*laid(bodies), programs(decoder, kinds))
    fits = {kinds[at] for at in np.flatnonzero(found.status == 0)}
    assert fits <= drifted


def paths(rows: list[dict[str, Any]], above: str = "") -> set[str]:
    """Every dotted path in these rows."""
    out = set()
    for row in rows:
        for name, value in row.items():
            if name in ("tag", "bytes"):
                continue
            out.add(above + name)
            below = value if isinstance(value, list) else [value]
            out |= paths([item for item in below if isinstance(item, dict)], f"{above}{name}.")
    return out


def projected(row: Any, wanted: set[str], above: str = "") -> Any:
    """A full row less what nobody asked for."""
    if isinstance(row, list):
        return [projected(item, wanted, above) for item in row]
    if not isinstance(row, dict):
        return row
    out = {}
    for name, value in row.items():
        path = above + name
        if path in wanted:
            out[name] = value
        elif any(other.startswith(path + ".") for other in wanted):
            out[name] = projected(value, wanted, path + ".")
    return out


def without_tags(row: Any) -> Any:
    """Unknown tags come with the whole message only."""
    if isinstance(row, list):
        return [without_tags(item) for item in row]
    if isinstance(row, dict):
        return {name: without_tags(value) for name, value in row.items() if name != "_tags"}
    return row


@pytest.mark.parametrize("key", [0, 1, 2, 3, 18, 32, 36, 44, 55, 68, 78, 88])
@pytest.mark.parametrize("side", [0, 1])
def test_any_choice_of_fields_has_the_values_of_the_whole(decoder: Decoder, key: int, side: int) -> None:
    kinds = [kind for kind in classes() if kind[0] == key and kind[2] == side for _ in range(3)]
    bodies = [generate(kind, at)[0] for at, kind in enumerate(kinds)]
    _, whole = rows_of(decoder, kinds, bodies)
    known = sorted(path for path in paths(list(whole.values())) if not path.endswith("_tags"))
    chance = random.Random(f"{key} {side}")
    for _ in range(6):
        wanted = set(chance.sample(known, min(len(known), chance.randrange(1, 5))))
        _, rows = rows_of(Decoder({(key, side): wanted}), kinds, bodies)
        for at, row in whole.items():
            partners = {path.removesuffix("_bytes") for path in wanted} | {path + "_bytes" for path in wanted}
            expected = without_tags(projected(row, wanted | partners))
            assert_projection(expected, rows[at], wanted)


def assert_projection(expected: Any, actual: Any, wanted: set[str]) -> None:
    """`expected` may name sizes of fields that have none beside them in the schema: those are not in `actual`."""
    if isinstance(actual, dict):
        assert actual.keys() <= expected.keys(), wanted
        for name, value in actual.items():
            assert_projection(expected[name], value, wanted)
    elif isinstance(actual, list):
        assert len(actual) == len(expected)
        for one, other in zip(expected, actual, strict=True):
            assert_projection(one, other, wanted)
    else:
        assert repr(expected) == repr(actual), wanted
