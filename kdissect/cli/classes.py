"""Dataclasses that cost little to declare: what `dataclasses.dataclass` writes as source and compiles, half a
millisecond a class, is made here of closures, and compiled for who calls it often or asks for what is rarely asked for.

Only for plain classes of this package: fields with defaults or factories, frozen or not, with slots or not. All others
are made as always. Nothing but time tells the two apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

OFTEN = 100
"""So many objects are made before what makes them is compiled: a call of that takes a quarter of the time."""
_KNOWN = frozenset({"frozen", "slots", "eq"})
_OWN = frozenset({"__init__", "__repr__", "__eq__", "__hash__", "__setattr__", "__delattr__", "__getstate__",
                  "__setstate__", "__slots__", "__lt__", "__match_args__", "__init_subclass__"})  # fmt: skip
"""A class that has one of these itself is made as always."""
_UNUSUAL = ("ClassVar", "InitVar", "KW_ONLY")
_FIELD: Any = type(dataclasses.field(default=None))
_MISSING = dataclasses.MISSING


class LeanDataclasses:
    """Takes the place of `dataclass` for modules that are imported from now on."""

    def __init__(self, package: str = "kdissect.") -> None:
        self._package = package
        self._real: Any = dataclasses.dataclass

    def install(self) -> None:
        """From here on."""
        vars(dataclasses)["dataclass"] = self.dataclass

    def dataclass(self, declared: Any = None, /, **options: Any) -> Any:
        """What is called in place of `dataclasses.dataclass`."""
        if declared is None:
            return lambda declared: self.dataclass(declared, **options)
        notes = vars(declared).get("__annotations__")
        plain = (
            declared.__module__.startswith(self._package) and notes and declared.__bases__ == (object,)
            and options.keys() <= _KNOWN and _OWN.isdisjoint(declared.__dict__)
            and all(isinstance(text, str) and not text.startswith(_UNUSUAL) for text in notes.values())
        )  # fmt: skip
        given = {name: declared.__dict__[name] for name in notes or () if name in declared.__dict__}
        if not plain or any(isinstance(one, _FIELD) and _is_unusual(one) for one in given.values()):
            return self._real(declared, **options)
        return _made(declared, tuple(notes), given, self._real, options)


def _is_unusual(one: Any) -> bool:
    usual = one.init and one.repr and one.compare and one.hash is None and one.kw_only is not True
    return not usual or bool(one.metadata)


def _made(declared: Any, names: tuple[str, ...], given: Mapping[str, Any], real: Any, options: dict[str, Any]) -> Any:
    frozen, slots, equal = (options.get(name, name == "eq") for name in ("frozen", "slots", "eq"))
    values = {name: one.default if isinstance(one, _FIELD) else one for name, one in given.items()}
    values = {name: value for name, value in values.items() if value is not _MISSING}
    factories = {name: one.default_factory for name, one in given.items() if name not in values}
    space = {name: one for name, one in declared.__dict__.items() if name not in given}
    notes, module = space["__annotations__"], declared.__module__
    if slots:
        space["__slots__"] = names
        for name in ("__dict__", "__weakref__"):
            space.pop(name, None)
        made = type(declared)(declared.__name__, (), space)
        made.__qualname__ = declared.__qualname__
    else:
        made = declared
        for name in factories:
            delattr(made, name)
        for name, value in values.items():
            setattr(made, name, value)

    def shadow(**more: Any) -> Any:
        """The same class, made as always: where what is rarely asked for comes from."""
        whole = type(
            made.__name__, (), {**given, "__annotations__": notes, "__module__": module, "__doc__": "As always"}
        )
        whole.__qualname__ = made.__qualname__
        return real(whole, **more)

    post = hasattr(made, "__post_init__")
    if slots:
        setters = [made.__dict__[name].__set__ for name in names]
    else:
        setters = [_setter(name) for name in names]
    rest = list(zip(names, setters, strict=True))
    count, calls = len(names), 0

    def init(self: Any, /, *args: Any, **named: Any) -> None:
        nonlocal calls
        calls += 1
        at = len(args)
        if calls > OFTEN or at > count:
            type.__setattr__(made, "__init__", _compiled(made, names, values, factories, frozen))
            made.__init__(self, *args, **named)
            return
        for put, value in zip(setters, args, strict=False):
            put(self, value)
        taken = 0
        for name, put in rest[at:]:
            if name in named:
                put(self, named[name])
                taken += 1
            elif name in values:
                put(self, values[name])
            elif name in factories:
                put(self, factories[name]())
            else:
                taken = -1
                break
        if taken != len(named):  # not as declared: the compiled one says it
            _compiled(made, names, values, factories, frozen)(self, *args, **named)
        elif post:
            self.__post_init__()

    def representation(self: Any) -> str:
        type.__setattr__(made, "__repr__", shadow(init=False, eq=False).__repr__)
        return repr(self)

    made.__init__, made.__repr__ = init, representation
    type.__setattr__(made, "__match_args__", names)
    made.__dataclass_fields__ = _Late(lambda: shadow(init=False, repr=False, eq=False).__dataclass_fields__)
    made.__dataclass_params__ = _Late(lambda: shadow(frozen=frozen, eq=equal).__dataclass_params__)
    if equal:
        every = attrgetter(*names)

        def same(self: Any, other: Any) -> Any:
            return every(self) == every(other) if other.__class__ is self.__class__ else NotImplemented

        made.__eq__ = same
        made.__hash__ = (lambda self: hash(every(self))) if frozen else None
    if frozen:
        made.__setattr__, made.__delattr__ = _refused("assign to"), _refused("delete")
        if slots:
            made.__getstate__, made.__setstate__ = _state, _restored
    return made


def _compiled(
    made: Any, names: tuple[str, ...], values: Mapping[str, Any], factories: Mapping[str, Any], frozen: bool
) -> Any:
    """What makes an object, as source: Python says itself where arguments are not as declared."""
    space: dict[str, Any] = {"put": object.__setattr__, "missing": _MISSING}
    heads, lines = ["self"], []
    for name in names:
        value = name
        if name in factories:
            space[f"make_{name}"] = factories[name]
            heads.append(f"{name}=missing")
            value = f"make_{name}() if {name} is missing else {name}"
        elif name in values:
            space[f"default_{name}"] = values[name]
            heads.append(f"{name}=default_{name}")
        else:
            heads.append(name)
        lines.append(f"put(self, '{name}', {value})" if frozen else f"self.{name} = {value}")
    if hasattr(made, "__post_init__"):
        lines.append("self.__post_init__()")
    exec(f"def __init__({', '.join(heads)}):\n  " + "\n  ".join(lines), space)
    function = space["__init__"]
    function.__qualname__ = f"{made.__qualname__}.__init__"
    return function


class _Late:
    """An attribute of a class that is made when it is asked for."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self._made = make, None

    def __get__(self, item: Any, owner: Any) -> Any:
        if self._made is None:
            self._made = self._make()
        return self._made


def _setter(name: str) -> Callable[[Any, Any], None]:
    def put(item: Any, value: Any) -> None:
        item.__dict__[name] = value

    return put


def _refused(what: str) -> Callable[..., None]:
    def refuse(self: Any, name: str, *_: Any) -> None:
        raise dataclasses.FrozenInstanceError(f"cannot {what} field {name!r}")

    return refuse


def _state(self: Any) -> list[Any]:
    return [getattr(self, name) for name in self.__match_args__]


def _restored(self: Any, state: list[Any]) -> None:
    for name, value in zip(self.__match_args__, state, strict=True):
        object.__setattr__(self, name, value)
