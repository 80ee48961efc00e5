r"""The boundary for text that is not ours: names from the wire and from the file system, before anybody looks at them.

A terminal obeys control characters: they move the cursor, set its title, answer as if the user had typed. Characters
that turn the direction of writing or take no room make one name look like another. So every text that reaches a
terminal, standard error or the report passes `visible`, which writes each character that shows nothing, or does
something, as JSON would: `\u001b`, and a pair of surrogates beyond U+FFFF. Inside JSON it means the same as before.

Data that goes to a file or a pipe is exact. `formula_safe` is for CSV that a spreadsheet opens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

INVISIBLE = frozenset(
    "\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180e\u180f\u2800\u3164\uffa0"
    + "".join(map(chr, [*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0)]))
)
"""Characters that Unicode counts among letters and marks and that show nothing: fillers, joiners, selectors of variants
(Default_Ignorable_Code_Point of DerivedCoreProperties.txt, and the empty Braille cell)."""
FORMULA = "=+-@\t\r"
"""A cell that begins with one of these is run as a formula by spreadsheets (OWASP, CSV injection)."""


class _Escapes(dict[int, str]):
    """The text that stands for each character, found when it is first asked for."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        shown = character if character.isprintable() and character not in INVISIBLE else escaped(code)
        if len(self) < 1 << 14:  # names in any script; whoever sends all of Unicode shall not fill memory
            self[code] = shown
        return shown


def escaped(code: int) -> str:
    r"""A code point as JSON writes it: `\u001b`, or a pair of surrogates (RFC 8259, section 7)."""
    if code < 1 << 16:
        return f"\\u{code:04x}"
    high, low = divmod(code - (1 << 16), 1 << 10)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


_ESCAPES = _Escapes()


def visible(text: str) -> str:
    r"""The text with every character escaped that a terminal would obey or that shows nothing: C0, C1 (ECMA-48), marks
    and overrides of direction (UAX 9), zero-width and unassigned ones, line ends included."""
    if text.isascii() and text.isprintable():
        return text
    return text.translate(_ESCAPES)


def visible_column(column: pa.Array) -> pa.Array:
    """`visible` for each text of a string column; null stays null."""
    return _changed(column, r"[^ -~]", visible)


def formula_safe(column: pa.Array) -> pa.Array:
    """A string column with ' before each text that a spreadsheet would take for a formula; null stays null."""
    return _changed(column, rf"^[{FORMULA.replace('-', chr(92) + '-')}]", "'{}".format)


def _changed(column: pa.Array, pattern: str, change: Callable[[str], str]) -> pa.Array:
    """The column, `change` applied to the texts that the pattern finds something in."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.fill_null(pc.match_substring_regex(column, pattern), False)
    if not pc.any(found).as_py():
        return column
    new = pa.array([change(text) for text in column.filter(found).to_pylist()], column.type)
    return pc.replace_with_mask(column, found, new)
