"""The shared object that holds all kernels compiled, and how Python calls them: ctypes, without Python's ABI.

Each function takes two addresses: the arguments as 64-bit words (`Signature.pack`), and words for its results. The
first of these is numba's description of an exception. It returns numba's status. Calls release the GIL.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from struct import Struct
from typing import Any

from kdissect.kernels.signature import Signature, described

PACKAGE = Path(__file__).parent.parent
PATH = Path(__file__).with_name("compiled.so")
SOURCES = "kdissect_sources"
"""Symbol of a text: the digest of the sources that it was made of, and their names, a line each."""
_FINE = (0, -2)
"""Statuses of numba: a value was returned, None was returned. Everything else is an exception."""


class _Exception(ctypes.Structure):
    """How numba describes an exception that a kernel raises: the pickled type, arguments and place."""

    _fields_ = [("pickled", ctypes.c_void_p), ("size", ctypes.c_int32)]


def symbol(name: str, form: int) -> str:
    """The name of a kernel in the shared object, in the n-th form of its declaration."""
    return f"{name.replace('.', '_')}_{form}"


class Library:
    """The functions of a shared object."""

    def __init__(self, path: Path) -> None:
        """Raises OSError for what is no shared object of this machine."""
        self.path = path
        self._loaded = ctypes.CDLL(str(path))

    @property
    def sources(self) -> tuple[str, list[str]]:
        """The digest of the sources that it was made of, and their names."""
        text = ctypes.string_at(ctypes.addressof(ctypes.c_char.in_dll(self._loaded, SOURCES)))
        made_of, *names = text.decode().split("\n")
        return made_of, names

    def __contains__(self, name: str) -> bool:
        return hasattr(self._loaded, symbol(name, 0))

    def function(self, name: str, signatures: list[Signature]) -> Callable[..., Any]:
        """The kernel of this name, which raises TypeError for arguments that fit none of its signatures."""
        forms = [self._form(symbol(name, i), signature) for i, signature in enumerate(signatures)]

        def call(*values: Any) -> Any:
            for pack, code, room, unpack in forms:
                words = pack(values)
                if words is not None:
                    given = room()
                    if code(_words(len(words))(*words), given) not in _FINE:
                        raise _raised(given[0])
                    return unpack(given[1:])
            raise TypeError(f"{name} takes ({' or '.join(map(str, signatures))}), not ({described(values)})")

        return call

    def _form(self, name: str, signature: Signature) -> tuple[Any, Any, Any, Any]:
        code = self._loaded[name]
        code.argtypes, code.restype = (ctypes.c_char_p, ctypes.c_void_p), ctypes.c_int32
        return signature.pack, code, ctypes.c_int64 * (1 + len(signature.given)), signature.unpack


@cache
def _words(count: int) -> Callable[..., bytes]:
    """A function that puts so many 64-bit words behind one another."""
    return Struct(f"{count}q").pack


def _raised(address: int) -> Exception:
    import pickle

    described = _Exception.from_address(address)
    kind, arguments, *_ = pickle.loads(ctypes.string_at(described.pickled, described.size))
    made: Exception = kind(*(arguments or ()))
    return made


def in_checkout() -> bool:
    """Whether the sources lie in a checkout, where they may change; else the package was installed as it is."""
    return (PACKAGE.parent / "pyproject.toml").exists()


def find_library() -> Library | None:
    """The shared object next to this module; in a checkout, only if it was made of just the sources that lie there."""
    if not PATH.exists():
        return None
    try:
        library = Library(PATH)
    except OSError as error:
        raise ImportError(f"{PATH} was compiled for another system: install kdissect anew ({error})") from None
    return library if not in_checkout() or _up_to_date(library) else None


def _up_to_date(library: Library) -> bool:
    """Whether the sources that a shared object was made of are as they were. Kernels in other files are not in it."""
    from kdissect.kernels.cache import digest

    try:
        made_of, names = library.sources
        return made_of == digest(names)
    except (OSError, ValueError):  # one is gone; an older version names none
        return False
