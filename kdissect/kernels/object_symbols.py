"""Lists the symbols that an object file needs from elsewhere. Symbols that a code generator adds (`bzero`, `fmod`) show
nowhere else.

Rules: the ELF-64 object file format (System V ABI, chapter 4), and Mach-O's `mach/loader.h` and `nlist.h`, both
little-endian. The files are our own code generator's, so nothing is checked but their kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct, unpack_from

ELF_MAGIC = b"\x7fELF\x02\x01"
MACHO_MAGIC = b"\xcf\xfa\xed\xfe"
SYMBOL_SECTION = 2
"""sh_type of a symbol table (SHT_SYMTAB)."""
SYMBOL_COMMAND = 2
"""cmd of a symbol table (LC_SYMTAB)."""
TYPE_MASK, DEBUGGING = 0x0E, 0xE0
"""Bits of n_type: where the symbol is defined (0 nowhere), and those of entries for debuggers."""
_SECTION = Struct("<IIQQQQIIQQ")
_ELF_SYMBOL = Struct("<IBBHQQ")
_MACHO_SYMBOL = Struct("<IBBHQ")


def undefined_symbols(data: bytes) -> set[str]:
    """Names of functions and data that the object file uses and does not have, as C writes them. Raises ValueError for
    a file that is neither ELF-64 nor Mach-O-64."""
    if data.startswith(ELF_MAGIC):
        return set(_of_elf(data))
    if data.startswith(MACHO_MAGIC):
        return set(_of_macho(data))
    raise ValueError("neither an ELF nor a Mach-O object")


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _of_elf(data: bytes) -> Iterator[str]:
    (sections,) = unpack_from("<Q", data, 40)
    size, count = unpack_from("<HH", data, 58)
    headers = [_SECTION.unpack_from(data, sections + i * size) for i in range(count)]
    for _, kind, _, _, offset, length, link, *_ in headers:
        if kind == SYMBOL_SECTION:
            texts = headers[link][4]
            for at in range(offset, offset + length, _ELF_SYMBOL.size):
                name, _, _, section, *_ = _ELF_SYMBOL.unpack_from(data, at)
                if name and section == 0:
                    yield _text(data, texts + name)


def _of_macho(data: bytes) -> Iterator[str]:
    (commands,) = unpack_from("<I", data, 16)
    at = 32
    for _ in range(commands):
        command, size = unpack_from("<II", data, at)
        if command == SYMBOL_COMMAND:
            symbols, count, texts, _ = unpack_from("<IIII", data, at + 8)
            for i in range(count):
                name, kind, *_ = _MACHO_SYMBOL.unpack_from(data, symbols + i * _MACHO_SYMBOL.size)
                if not kind & (TYPE_MASK | DEBUGGING):
                    yield _text(data, texts + name).removeprefix("_")
        at += size
