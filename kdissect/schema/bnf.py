"""Layouts as text, in the form of Kafka's own protocol page, and what changed between two versions.

    Fetch Request (Version: 12) => max_wait_ms min_bytes ... [topics] _tags
      max_wait_ms => INT32          # how long the broker may wait for min_bytes
      topics => topic [partitions] _tags
        topic => COMPACT_STRING

Arrays stand in brackets; types are those of Kafka's protocol guide; `_tags` is a struct's buffer of tagged fields,
whose known members are listed under it by tag.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from kdissect.problems import UsageError
from kdissect.schema import index
from kdissect.schema.model import REQUEST, RESPONSE, Api, Field, Message
from kdissect.schema.names import snake_case

_INDENT = "  "
_DOCS_AT = 46
"""Column where meanings begin; longer lines push theirs out."""


def layout(api: str | int, version: int, direction: str, docs: bool = True) -> str:
    """The layout of one version: header, body, and any other layout that the same version once had.

    Raises UsageError for an unknown API, version or direction.
    """
    known, side = index.load().find_api(api), index.side_of(direction)
    return "\n".join(_layout(known, side, version, docs))


def diff(api: str | int, before: int, after: int) -> str:
    """The changes from one version to another, both directions: `+` fields that came, `-` fields that went, in wire
    order, with their dotted paths. Raises UsageError for an unknown API or version."""
    known = index.load().find_api(api)
    out: list[str] = []
    for side in (REQUEST, RESPONSE):
        message = known.message(side)
        old, new = (list(_paths(message, _fields_in(known, side, version), version, "")) for version in (before, after))
        was, now = before in message.flexible, after in message.flexible
        lines = []
        if was != now:
            lines.append("* flexible: compact lengths, structs end with tags" if now else "* no longer flexible")
        changed = list(difflib.unified_diff([row[0] for row in old], [row[0] for row in new], n=0, lineterm=""))
        docs = dict(old + new)
        lines += [_line(f"{line[0]} {line[1:]}", docs[line[1:]]) for line in changed[2:] if not line.startswith("@@")]
        title = f"{known.name} {_direction(side)}, version {before} to {after}"
        out += [title, *(f"{_INDENT}{line}" for line in lines)] if lines else [f"{title}: the same"]
    return "\n".join(out)


def apis() -> str:
    """All APIs: key, name, versions, first flexible version, who listens, what is special."""
    rows = [("key", "name", "versions", "flexible", "listeners", "")]
    for api in index.load().apis.values():
        flexible = api.request.flexible
        notes = []
        if api.removed.first <= api.removed.last:
            notes.append(f"removed: {_range(api.removed.first, api.removed.last)}")
        if api.unstable.first <= api.unstable.last:
            notes.append(f"unstable: {_range(api.unstable.first, api.unstable.last)}")
        if api.former_names:
            notes.append(f"formerly {', '.join(api.former_names)}")
        first = f"{flexible.first}+" if flexible.first <= flexible.last else "never"
        versions = _range(api.request.versions.first, api.request.versions.last)
        rows.append((str(api.key), api.name, versions, first, ", ".join(api.listeners), "; ".join(notes)))
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    lines = (
        f"{row[0]:>{widths[0]}}  " + "  ".join(f"{row[i]:<{widths[i]}}" for i in range(1, 5)) + f"  {row[5]}"
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def _range(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _direction(side: int) -> str:
    return "response" if side == RESPONSE else "request"


def _layout(api: Api, side: int, version: int, docs: bool) -> Iterator[str]:
    response = side == RESPONSE
    form = (index.response_header_version if response else index.request_header_version)(api.key, version)
    name = "ResponseHeader" if response else "RequestHeader"
    header = index.load().payloads[name]
    body = list(_body(api, side, version, docs))  # first of all, for an unknown version
    if docs and api.doc:
        yield f"# {api.doc}"
    yield from _struct(header, f"{name} (Version: {form})", header.fields, form, docs)
    yield ""
    yield from body
    message = api.message(side)
    for variant in message.variants:
        if version in variant.versions:
            title = f"{api.name} {_direction(side).title()} (Version: {version}, as in Kafka {variant.release})"
            yield ""
            yield from _struct(message, title, variant.fields, version, docs)


def _body(api: Api, side: int, version: int, docs: bool) -> Iterator[str]:
    message = api.message(side)
    fields = _fields_in(api, side, version)
    title = f"{api.name} {_direction(side).title()} (Version: {version})"
    yield from _struct(message, title, fields, version, docs)


def _fields_in(api: Api, side: int, version: int) -> tuple[Field, ...]:
    message = api.message(side)
    if version not in message.versions:
        known = _range(message.versions.first, message.versions.last)
        raise UsageError(f"{api.name} has versions {known}, not {version}")
    return message.fields


def _struct(
    message: Message, title: str, fields: tuple[Field, ...], version: int, docs: bool, level: int = 0, doc: str = ""
) -> Iterator[str]:
    here = [item for item in fields if version in item.versions]
    tagged = sorted((item for item in here if item.tag is not None), key=lambda item: item.tag or 0)
    plain = [item for item in here if item.tag is None]
    flexible = version in message.flexible
    names = [f"[{snake_case(item.name)}]" if item.kind == "array" else snake_case(item.name) for item in plain]
    if flexible:
        names.append("_tags")
    yield _line(f"{_INDENT * level}{title} => {' '.join(names)}", doc if docs else "")
    for item in plain:
        yield from _field(message, item, version, docs, level + 1, snake_case(item.name))
    for item in tagged:
        yield from _field(message, item, version, docs, level + 1, f"_tags {item.tag}: {snake_case(item.name)}")


def _field(message: Message, item: Field, version: int, docs: bool, level: int, title: str) -> Iterator[str]:
    about = _about(item)
    nullable = version in item.nullable
    if item.fields:
        if nullable:
            about = f"nullable; {about}" if about else "nullable"
        yield from _struct(message, title, item.fields, version, docs, level, about)
        return
    compact = version in (message.flexible if item.flexible is None else item.flexible)
    kind = _type(item.element or item.kind, nullable and item.kind != "array", compact)
    if nullable and item.kind == "array":
        about = f"nullable; {about}" if about else "nullable"
    if item.tag is not None and item.has_default:
        kind += f" = {'null' if item.default is None else item.default}"
    yield _line(f"{_INDENT * level}{title} => {kind}", about if docs else "")


def _about(item: Field) -> str:
    values = ", ".join(f"{value} {text}" for value, text in item.values)
    return "; ".join(part for part in (item.doc, values) if part)


def _type(kind: str, nullable: bool, compact: bool) -> str:
    name = "BOOLEAN" if kind == "bool" else kind.upper()
    if kind in ("string", "bytes", "records"):
        name = f"{'COMPACT_' if compact else ''}{'NULLABLE_' if nullable else ''}{name}"
    return name


def _line(text: str, doc: str) -> str:
    return f"{text:<{_DOCS_AT}}  # {doc}" if doc else text


def _paths(message: Message, fields: tuple[Field, ...], version: int, above: str) -> Iterator[tuple[str, str]]:
    """(path and type, meaning) of every field, without how lengths are written."""
    for item in fields:
        if version not in item.versions:
            continue
        path = above + snake_case(item.name)
        kind = item.element or item.kind
        kind = f"[{_type(kind, False, False)}]" if item.kind == "array" else _type(kind, False, False)
        extra = [f"tag {item.tag}"] if item.tag is not None else []
        extra += ["nullable"] if version in item.nullable else []
        yield f"{path} {kind}{', '.join(['', *extra])}", _about(item)
        yield from _paths(message, item.fields, version, f"{path}.")
