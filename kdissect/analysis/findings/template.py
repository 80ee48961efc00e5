"""Templates of findings' texts: values stand in braces, what may be left out in brackets.

`{broker}` is a value, None as `(none)`. A colon and a form after its name say how it is written:

- `n` a number with separators of thousands, or the length of a list; `ms` a duration;
- `clock` an instant of the day with milliseconds, `time` without;
- `times` once, twice, 12 times; `#session` 1 session, 3 sessions; `#batch|batches` for other plurals;
- `?is|are` the first word for one, else the second, by a number or by the length of a list;
- `who` a client, `Who` the same at the beginning of a sentence;
- `list` the items of a list, `list2` two of them at most, `all` each of them;
- `list NAME` its items by the template NAME of the kind's parts. `{it}` is an item that is no mapping.

`[ of {group}]` is left out where a value in it is not known: None, False, or an empty text or list. `[A|B]` is B then.
`[?late: ...]` is there where the value `late` holds, and does not show it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from kdissect.analysis.findings.phrases import EMPTY, clock, duration, list_names, many, time_text, times_over, who

FIELD = re.compile(r"\{(\w+)(?::([^}]*))?\}")
SECTION = re.compile(r"\[([^]]*)\]")
FLAG = re.compile(r"\?(\w+):(.*)", re.DOTALL)
ALTERNATIVES = re.compile(r"\|(?![^{]*\})")
MOST_ITEMS = 4
PAIR = 2

Values = Mapping[str, Any]


def fill(template: str, values: Values, parts: Mapping[str, str]) -> str:
    """The text of a template. Raises KeyError for a value outside of brackets that is not there, and for a part that
    the kind does not have."""
    chosen = SECTION.sub(lambda match: _choose(match[1], values), template)
    return FIELD.sub(lambda match: _write(values[match[1]], match[2] or "", parts), chosen)


def fields(template: str) -> set[str]:
    """Names of all values that a template mentions."""
    return {name for name, _ in FIELD.findall(template)} | {
        flag[1] for section in SECTION.findall(template) if (flag := FLAG.fullmatch(section))
    }


def _choose(section: str, values: Values) -> str:
    """The text between two brackets, by the values that are known."""
    for one in ALTERNATIVES.split(section):
        flag = FLAG.fullmatch(one)
        shown, named = (flag[2], [flag[1]]) if flag else (one, [])
        if all(_has_value(values.get(name)) for name in [*named, *(name for name, _ in FIELD.findall(shown))]):
            return shown
    return ""


def _has_value(value: object) -> bool:
    return value is not None and value is not False and value not in ("", [], ())


def _write(value: Any, form: str, parts: Mapping[str, str]) -> str:
    """A value in a form."""
    if form.startswith("#"):
        return many(_number(value), *form[1:].split("|"))
    if form.startswith("?"):
        one, more = form[1:].split("|")
        return one if _number(value) == 1 else more
    if form.startswith("list "):
        return list_names(_fill_item(item, form[5:], parts) for item in value)
    return UNKNOWN[form] if value is None and form in UNKNOWN else FORMS[form](value)


def _fill_item(item: Any, part: str, parts: Mapping[str, str]) -> str:
    return fill(parts[part], item if isinstance(item, Mapping) else {"it": item}, parts)


def _number(value: Any) -> int:
    return int(value) if isinstance(value, int | float) else len(value)


def _name(value: object) -> str:
    return "(none)" if value is None else str(value) or EMPTY


FORMS: Mapping[str, Callable[[Any], str]] = {
    "": _name,
    "n": lambda value: f"{value if isinstance(value, int | float) else len(value):,.0f}",
    "ms": duration,
    "clock": clock,
    "time": lambda value: time_text(value, "%H:%M:%S"),
    "times": lambda value: times_over(_number(value)),
    "who": who,
    "Who": lambda value: who(value)[:1].upper() + who(value)[1:],
    "list": lambda value: list_names(value, MOST_ITEMS),
    "list2": lambda value: list_names(value, PAIR),
    "all": lambda value: list_names(value, len(value)),
}
"""How values are written, by form."""
UNKNOWN = {"ms": "a while", "clock": "an unknown time", "time": "an unknown time", "n": "(none)"}
"""How None is written in the forms that have no text for it."""
