"""Dataclasses that are made of closures are those that Python makes, but for time."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from kdissect.cli.classes import OFTEN, LeanDataclasses


class Point:
    """Of a plane."""

    x: int
    y: list[int] = dataclasses.field(default_factory=list)
    name: str = "here"

    def shifted(self) -> Any:
        """Another one."""
        return type(self)(self.x + 1)


class Node:
    """Of a circle; it says when it was made."""

    next: object = None
    made: int = 0

    def __post_init__(self) -> None:
        self.made += 1


def both(declared: type, **options: Any) -> tuple[Any, Any]:
    """The class made by Python, and the lean one."""
    lean, real = (
        type(declared.__name__, (), {k: v for k, v in vars(declared).items() if k not in ("__dict__", "__weakref__")})
        for _ in range(2)
    )
    made = LeanDataclasses(package=__name__).dataclass(lean, **options)
    assert type(vars(made)["__dataclass_fields__"]).__name__ == "_Late"
    return dataclasses.dataclass(real, **options), made


OPTIONS = [{}, {"slots": True}, {"frozen": True}, {"frozen": True, "slots": True}, {"slots": True, "eq": False}]


def outcome(work: Callable[[], Any]) -> Any:
    """What comes of a call: its value, or its exception's type and text."""
    try:
        return work()
    except (TypeError, AttributeError) as error:
        return type(error), str(error)


def _hashes(kind: Any) -> list[bool]:
    one, same = kind(1, ()), kind(1, ())
    return [isinstance(hash(one), int), (hash(one) == hash(same)) == (one == same), one != same]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_lean_dataclass_is_one(options: dict[str, Any]) -> None:
    real, lean = both(Point, **options)
    assert (lean.__doc__, lean.__match_args__) == (real.__doc__, real.__match_args__)
    assert [(one.name, one.type) for one in dataclasses.fields(lean)] == [
        (one.name, one.type) for one in dataclasses.fields(real)
    ]
    said = []
    for kind in (real, lean):
        one = kind(1, name="there")
        given: list[Callable[[], Any]] = [
            kind, partial(kind, 1, x=2), partial(kind, 1, z=2), partial(kind, 1, [], "", 4), partial(kind, y=[]),
            partial(setattr, one, "x", 5), partial(delattr, one, "name"), partial(_hashes, kind),
        ]  # fmt: skip
        told = [outcome(work) for work in given]
        told += [hasattr(one, "__dict__"), kind.__hash__ is None, one == 1, kind(1) == kind(1), kind(1) == kind(2)]
        told += [dataclasses.asdict(kind(x=3)), dataclasses.replace(kind(1), x=3).x, repr(kind(1)), kind(4).shifted().x]
        told += [copy.copy(kind(1)).x, copy.deepcopy(kind(1, [2])).y, kind(1).y is kind(1).y]
        made = [kind(n, name="a") for n in range(OFTEN + 2)]
        told += [[(one.x, one.y, one.name) for one in made], outcome(given[2])]
        said.append(told)
    assert repr(said[0]) == repr(said[1])


def test_an_object_that_holds_itself() -> None:
    for kind in both(Node, slots=True):
        node = kind()
        assert node.made == 1
        node.next = node
        assert repr(node).endswith("(next=..., made=1)")
        assert [kind().made for _ in range(OFTEN + 2)][-1] == 1


def test_what_is_not_plain_is_made_as_always() -> None:
    lean, module = LeanDataclasses(package=""), {"__module__": "dataclasses"}
    over = dataclasses.make_dataclass("D", ["a"])
    made = [
        lean.dataclass(type("A", (), {"__annotations__": {"a": "int"}, **module}), order=True),
        lean.dataclass(type("B", (), {"__annotations__": {"a": "ClassVar[int]"}, **module})),
        lean.dataclass(type("C", (over,), {"__annotations__": {"b": "int"}, **module})),
        LeanDataclasses().dataclass(type("E", (), {"__annotations__": {"a": "int"}, **module})),
    ]
    for kind in made:
        assert type(vars(kind)["__dataclass_fields__"]) is dict
    assert made[0](1) < made[0](2)


Kept = both(Point, frozen=True, slots=True)[1]
Kept.__qualname__ = Kept.__name__ = "Kept"


def test_frozen_ones_are_pickled() -> None:
    assert pickle.loads(pickle.dumps(Kept(1, [2]))) == Kept(1, [2])
