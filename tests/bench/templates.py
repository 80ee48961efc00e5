"""Bytes of messages in which some numbers differ from copy to copy, and from turn to turn."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True, slots=True)
class Number:
    """A number in a payload: `first`, and `copy` more for each copy of the cycle and `turn` more for each turn of it.

    `at`: its offset. `kind`: numpy's name of a big-endian integer, or `S4` for four decimal digits.
    """

    at: int
    kind: str
    first: int = 0
    copy: int = 0
    turn: int = 0

    @property
    def width(self) -> int:
        """Bytes that it takes."""
        return np.dtype(self.kind).itemsize


@dataclass(frozen=True, slots=True)
class Template:
    """Bytes, and the numbers to be filled in. Templates and bytes are put together by `+`."""

    data: bytes
    numbers: tuple[Number, ...] = ()

    def __add__(self, other: Template | bytes) -> Template:
        behind = template_of(other)
        moved = (replace(number, at=number.at + len(self.data)) for number in behind.numbers)
        return Template(self.data + behind.data, (*self.numbers, *moved))

    def __radd__(self, other: bytes) -> Template:
        return Template(other) + self

    def __len__(self) -> int:
        return len(self.data)

    def cut(self, begin: int, end: int) -> Template:
        """The bytes [begin, end) with their numbers. Raises ValueError where a number lies across an end."""
        inside = [n for n in self.numbers if n.at < end and n.at + n.width > begin]
        if any(n.at < begin or n.at + n.width > end for n in inside):
            raise ValueError(f"a number lies across a cut at {begin} or {end}")
        return Template(self.data[begin:end], tuple(replace(n, at=n.at - begin) for n in inside))


def template_of(data: Template | bytes) -> Template:
    """Bytes as a template without numbers; a template as it is."""
    return data if isinstance(data, Template) else Template(data)


def join(parts: Iterable[Template | bytes]) -> Template:
    """The parts in a row."""
    pieces, numbers, at = [], [], 0
    for part in map(template_of, parts):
        pieces.append(part.data)
        numbers += [replace(number, at=number.at + at) for number in part.numbers]
        at += len(part)
    return Template(b"".join(pieces), tuple(numbers))


def int32(first: int, copy: int = 0, turn: int = 0) -> Template:
    """Four bytes of a `Number`."""
    return Template(struct.pack(">i", first), (Number(0, ">i4", first, copy, turn),))


def int64(first: int, copy: int = 0, turn: int = 0) -> Template:
    """Eight bytes of a `Number`."""
    return Template(struct.pack(">q", first), (Number(0, ">i8", first, copy, turn),))


def digits(first: int = 0, copy: int = 1) -> Template:
    """Four decimal digits that name the copy."""
    return Template(b"%04d" % first, (Number(0, "S4", first, copy),))
