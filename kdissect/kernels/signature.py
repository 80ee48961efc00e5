"""The arguments and results of a kernel, as its decorator declares them: the one place that compiling, loading and
calling read.

    @kernel("u1[:] const i8[:,:] i8 b1 SKIM -> i8 i8")

The words are numpy's: `u1` is a number, `u1[:]` an array of them in one piece, `i8[:,:]` a matrix of rows; `const`
stands before an array that is only read, so that read-only memory may be given; a name is that of a NamedTuple's
`fields`, declared in the same words. Behind the arrow stands what comes back: nothing, a number, or several.
"""

from collections.abc import Mapping
from ctypes import addressof, c_char
from functools import cache
from operator import index
from typing import Any, NamedTuple, TypeAlias

import numpy as np

_NUMBERS = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f8")


class Number(NamedTuple):
    """A number or a truth value."""

    code: str

    def __str__(self) -> str:
        return self.code

    def pack(self, value: Any, words: list[int]) -> bool:
        """Append the value as a 64-bit word; False: it is none of these. Raises OverflowError where it has no room."""
        if self.code == "b1":
            words.append(bool(value))
            return isinstance(value, bool | np.bool_)
        if self.code == "f8":
            words.append(int(np.float64(value).view(np.int64)))
            return True
        try:
            number = index(value)
        except TypeError:
            return False
        bits, signed = int(self.code[1]) * 8, self.code[0] == "i"
        low, high = (-1 << bits - 1, 1 << bits - 1) if signed else (0, 1 << bits)
        if not low <= number < high:
            raise OverflowError(f"{number} is no {self.code}")
        words.append(number if number < 1 << 63 else number - (1 << 64))
        return True

    def unpack(self, word: int) -> Any:
        """The value of a word that a kernel gave."""
        if self.code == "b1":
            return bool(word)
        if self.code == "f8":
            return float(np.int64(word).view(np.float64))
        return word + (1 << 64) if word < 0 and self.code[0] == "u" else word


class Array(NamedTuple):
    """An array in one piece, aligned, row behind row."""

    code: str
    dimensions: int
    const: bool
    dtype: np.dtype[Any]

    def __str__(self) -> str:
        return f"{'const ' * self.const}{self.code}[{','.join(':' * self.dimensions)}]"

    def pack(self, value: Any, words: list[int]) -> bool:
        """Append where the elements lie and the size of each dimension; False: another kind of array, or none."""
        if not isinstance(value, np.ndarray) or value.ndim != self.dimensions or value.dtype != self.dtype:
            return False
        flags = value.flags
        if not (flags.c_contiguous and flags.aligned and (self.const or flags.writeable)):
            return False
        # The quick way is a fifth of the other, and takes no array that is empty or only read.
        quick = flags.writeable and value.size
        words.append(addressof(c_char.from_buffer(value)) if quick else value.__array_interface__["data"][0])
        words.extend(value.shape)
        return True


class Fields(NamedTuple):
    """A NamedTuple."""

    kind: Any
    parts: "tuple[Kind, ...]"

    def __str__(self) -> str:
        return str(self.kind.__name__)

    def pack(self, value: Any, words: list[int]) -> bool:
        """Append the fields; False: it is another tuple, or none."""
        return isinstance(value, self.kind) and all(map(lambda part, one: part.pack(one, words), self.parts, value))


Kind: TypeAlias = Number | Array | Fields


class Signature(NamedTuple):
    """The arguments and results of a kernel."""

    taken: tuple[Kind, ...]
    given: tuple[Number, ...]

    def __str__(self) -> str:
        """In the words of the decorator."""
        return " ".join(map(str, self.taken)) + " ->" * bool(self.given) + "".join(f" {one}" for one in self.given)

    def pack(self, values: tuple[Any, ...]) -> list[int] | None:
        """The arguments as 64-bit words, which hold only as long as the arguments live; None where they do not fit."""
        words: list[int] = []
        if len(values) != len(self.taken):
            return None
        for kind, value in zip(self.taken, values, strict=True):
            if not kind.pack(value, words):
                return None
        return words

    def unpack(self, words: Any) -> Any:
        """The results of a kernel, as Python objects."""
        if len(self.given) == 1:
            return self.given[0].unpack(words[0])
        return tuple(kind.unpack(word) for kind, word in zip(self.given, words, strict=True)) or None


def parse(text: str, names: Mapping[str, Any]) -> Signature:
    """The signature that `text` declares; `names` are those of the module that it stands in. Raises TypeError."""
    taken, arrow, given = text.partition("->")
    results = tuple(_kinds(given, names))
    if (arrow and not results) or not all(isinstance(one, Number) for one in results):
        raise TypeError(f"a kernel gives numbers or nothing, not '{given}'")
    return Signature(tuple(_kinds(taken, names)), tuple(one for one in results if isinstance(one, Number)))


def fields(kind: type, text: str) -> Fields:
    """The declaration of a kernel that takes this NamedTuple, whose fields `text` declares. Raises TypeError."""
    return Fields(kind, tuple(_kinds(text, {})))


def _kinds(text: str, names: Mapping[str, Any]) -> list[Kind]:
    kinds: list[Kind] = []
    const = False
    for word in text.split():
        if word == "const" and not const:
            const = True
            continue
        kind = _plain(word, const) or names.get(word)
        if not isinstance(kind, Kind) or (const and not isinstance(kind, Array)):
            raise TypeError(f"no word of a signature: '{'const ' * const}{word}'")
        kinds.append(kind)
        const = False
    if const:
        raise TypeError("no word of a signature: 'const'")
    return kinds


@cache
def _plain(word: str, const: bool) -> Kind | None:
    """A kind that needs no declaration. There are few of them and many words."""
    code, bracket, places = word.partition("[")
    dimensions = places.count(":")
    if code not in _NUMBERS or (bracket and (not dimensions or places != ",".join(":" * dimensions) + "]")):
        return None
    return Array(code, dimensions, const, np.dtype(code)) if dimensions else Number(code)


def described(values: tuple[Any, ...]) -> str:
    """Arguments in the words of a signature, for a message."""
    return " ".join(map(_described, values))


def _described(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return type(value).__name__
    flags = value.flags
    odd = "" if flags.c_contiguous else "apart "
    odd += "" if flags.aligned else "unaligned "
    return f"{odd}{'' if flags.writeable else 'const '}{value.dtype.str[1:]}[{','.join(':' * value.ndim)}]"
