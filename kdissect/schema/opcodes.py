"""The two small languages that schemas are compiled to, and what can be wrong with a body.

A program is a run of rows of `STRIDE` int64 each: an op-code and its operands. Each layout has up to two programs:

* its **count program** walks a body and checks everything (every length, count, tag and null against the frame's end
  and the schema). It adds up the sizes of columns, and tracks error codes and the throttle time. Fixed-size fields fold
  into one skip. It checks the whole layout for any projection, so that a body's status never depends on the projection.
* its **fill program** writes the columns that were asked for, of bodies that its count program found to fit; it exists
  only where something was asked for.

Operands are listed next to each op-code. `form` is how a length or count is written (SHORT_FORM int16, LONG_FORM int32,
COMPACT unsigned varint of n + 1, KIP-482), its fewest bytes; `counter` is a row of the counters (0 is a counter that is
never read); `level` is the counter that numbers rows; `exit` is the row to go on with.
"""

from __future__ import annotations

from typing import Final

STRIDE: Final = 8
"""int64 operands a row, the op-code included: a cache line."""

TAG_STRIDE: Final = 3
"""int64 a row of the tag table: tag, address of its value's rows, address of its default's rows."""

SHORT_FORM: Final = 2
LONG_FORM: Final = 4
COMPACT: Final = 1

# Count programs: op-code, then a, b, c, d
# The first four consume a bytes, the next four begin with a length or count in form a: the kernel tests for ranges.
SKIP: Final = 0  # size
ERROR: Final = 1  # 2, 1 where it is the response's own ErrorCode
THROTTLE: Final = 2  # 4
MAYBE: Final = 3  # 1, exit: a nullable struct's marker; go to exit where it is null
TEXT: Final = 4  # form, nullable, counter of bytes; in g what `redact` does with it: one of KEEP...
LIST: Final = 5  # form, nullable, counter of elements, least size of an element, exit
MULT: Final = 6  # form, nullable, counter of elements, exact size of an element: an array in one step
TAGS: Final = 7  # COMPACT, counter of unknown tags (their bytes: the one after), exit, first row of tags, known tags
TAGEND: Final = 8  # end of a known tag's value
NEXT: Final = 9  # end of a list's element
STOP: Final = 10  # the body must end here

BLANK: Final = 0
KEEP: Final = 1
KEEP_NAME: Final = 2
CONFIG_NAME: Final = 3  # kept as a name; says whose value follows
CONFIG_VALUE: Final = 4  # kept where it is a harmless value of a known configuration
RECORDS: Final = 5  # blanked record by record
"""What `redact` does with a text, in a TEXT row's operand g (KIND_AT); in this order: the last two are judged one by
one, words and names where somebody renames them."""
KIND_AT: Final = 7

LAST_FIXED: Final = MAYBE
LAST_SIZED: Final = TAGS

# Fill programs: op-code, level, column (row of the column table, -1 none), then a, b, c, d
F_INT32: Final = 0
F_INT64: Final = 1
F_INTEGER: Final = 2  # size on the wire, log2 of the column's width (BOOL_WIDTH: one bit), 1 where signed
F_CONST: Final = 3  # row of the constants, width as above: an absent tag's default
F_SKIP: Final = 4  # size
F_UUID: Final = 5  # 1: an absent tag's default, the zero uuid
F_VALID: Final = 6  # a struct is there
F_EMPTY: Final = 7  # counter, valid: an absent string or list, null or empty
F_MAYBE: Final = 8  # exit
F_JUMP: Final = 9  # exit
F_TEXT: Final = 10  # form, counter
F_SIZE: Final = 11  # form, column of the value's position (-1 none): a length instead of the value
F_PASS: Final = 12  # form, size of an element: a text (1) or fixed-size array that nobody asked for
F_LIST: Final = 13  # form, counter, exit
F_INT32S: Final = 14  # form, counter, column of the elements: list<int32> in one step
F_TAGS: Final = 15  # COMPACT, counter of unknown tags, exit, first row of tags, known tags; columns: list, tag, bytes
F_TAGEND: Final = 16  # 1 after a tag's value, 0 after a default
F_NEXT: Final = 17
F_STOP: Final = 18

F_NUMBERS: Final = (F_INT32, F_INT64, F_INTEGER)
BEHIND_AT: Final = 6
"""The operand of these that says how many bytes behind the number are passed over."""

BOOL_WIDTH: Final = 4

MAX_DEPTH: Final = 24
"""Rows of the kernels' stack: lists and tag buffers open at once. Kafka's deepest schema needs 8, the compiler
checks."""
MAX_KNOWN_TAGS: Final = 62
"""Known tags of one struct: those seen are bits of an int64. Kafka's largest number is 4; the compiler checks."""

# What a body's status can be
OK: Final = 0
SHORT: Final = 1
BAD_VARINT: Final = 2
TRAILING: Final = 3
BAD_COUNT: Final = 4
BAD_LENGTH: Final = 5
BAD_NULL: Final = 6
BAD_TAG: Final = 7
TOO_LARGE: Final = 8
NO_PROGRAM: Final = 9

STATUS_TEXT: Final = (
    "fits its layout",
    "a field reaches beyond the end of the body",
    "a variable-length integer of more than five bytes",
    "bytes are left over behind the last field",
    "an array count larger than the rest of the body can hold",
    "a length below -1",
    "null in a field which may not be null",
    "a tagged field that comes twice, or is not as long as it says",
    "columns would need more memory than one body may have",
    "no layout is known",
)
"""What each status says, for `problems.detail`."""

NO_CODE: Final = -(2**31)
"""Error code of a response without one at its top level."""
