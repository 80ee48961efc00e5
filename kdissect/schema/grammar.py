"""The `.kmsg` text format: one file per API, request and response at every version that Kafka ever had.

    # Finds out which broker coordinates a group or a transaction.          (a comment before `api` documents the API)
    api 10 FindCoordinator
    listeners broker                    who offers it: broker, controller, zookeeper (brokers before KRaft), none
    removed 0-1                         versions that the newest release no longer accepts
    unstable 6                          versions that may still change
    formerly FindGroupCoordinator       names that older releases gave the API

    request 0-6, flexible 3+
      Key              string   0-3     # a group or transactional id
      KeyType          int8     1+      {0 group, 1 transaction, 2 share}
      CoordinatorKeys  []string 4+

    response 0-6, flexible 3+, header 0 for 0-2
      ...

Indentation (two spaces a level) is nesting. A field is

    Name  type  [versions]  [attributes]  [= default]  [{value meaning, ...}]  [# meaning]

* Name: Kafka's own. The order of fields is their order on the wire.
* type: bool, int8, int16, uint16, int32, uint32, int64, float64, uuid, string, bytes, records, the name of a struct, or
  `[]` before one of these for an array. A struct's fields stand below it, or below `struct Name` earlier in the file.
* versions: `3`, `0-3` or `4+`; left out, the field is there wherever its struct is.
* nullable [versions]: may be null (in these versions).
* tag N: a tagged field (KIP-482): last in its struct, absent means its default.
* was Name: what older releases called the field.
* inflexible: keeps its int16 length in flexible versions too.
* public, name, free: what may be said of a text or of bytes to others (`redact`). `public` is one of a few words that
  Kafka or its clients define, `name` is what somebody called a thing of theirs, and `free` is anything. Every string
  and bytes field says one, or `secret`.
* secret: a credential, shown as its length only. `secret by Field`: unless that field, next to this one, names a
  configuration that Kafka defines, and not as a password.
* holds Message: bytes with another message in them, behind its version as an int16; `holds request`: a whole request,
  `holds response`: the answer to that.
* default: what an absent tagged field means, and what Kafka writes when it has nothing to say. Without one it is 0,
  false, empty, or Kafka's null UUID.
* value: a number, `null`, or `empty`. A line of `{...}` alone, indented below a field, goes on with its values.

`flexible` says from which version on lengths are varints and structs end with tags. `header H for V` is an exception
from the rule that flexible requests have header 2, others 1, flexible responses 1, others 0. `request 0 as in 3.5-3.6`
is another layout which the same version number had in those releases. A payload which is no API is `message Name 0-3`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field as dataclass_field

from kdissect.schema.model import NEVER, NONE, POLICIES, SCALARS, VARIABLE, Api, Field, Message, Variant, Versions

INDENT = 2
_PRIMITIVE = frozenset((*SCALARS, *VARIABLE))
_INTEGERS = frozenset(("int8", "int16", "uint16", "int32", "uint32", "int64"))
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*\Z")
_STRUCT = re.compile(r"[A-Z][A-Za-z0-9]*\Z")
_VERSIONS = re.compile(r"(\d+)(?:(\+)|-(\d+))?\Z")
_LISTENERS = frozenset(("broker", "controller", "zookeeper"))
_HEAD = re.compile(
    r"(?P<what>request|response|message (?P<name>\w+)) (?P<versions>[\d+-]+)"
    r"(?:, flexible (?P<flexible>[\d+-]+))?(?:, header (?P<header>\d+) for (?P<for>[\d+-]+))?"
    r"(?: as in (?P<release>\S+))?\Z"
)
_FIELD = re.compile(
    r"(?P<words>[^{#=]*)(?:=\s*(?P<default>\"[^\"]*\"|[^\s{#]+)\s*)?"
    r"(?:\{(?P<values>[^}]*)\}\s*)?(?:#\s*(?P<doc>.*))?\Z"
)


class GrammarError(ValueError):
    """A line that is not in the grammar; the text names file and line."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Line:
    """One line that says something: its number from 1, its indentation in levels, its text."""

    number: int
    level: int
    text: str


@dataclass(slots=True, eq=False, repr=False)
class Parsed:
    """The content of one file: an API, or messages which are none."""

    api: Api | None
    messages: dict[str, Message]


def parse(text: str, file: str) -> Parsed:
    """Parse one file; `file` is the name for error messages and for `Message.file`. Raises GrammarError."""
    return _Parser(text, file).parse()


@dataclass(slots=True, eq=False, repr=False)
class _Attributes:
    """The attributes behind a field's versions."""

    nullable: Versions = NONE
    tag: int | None = None
    inflexible: bool = False
    secret: bool = False
    secret_by: str | None = None
    policy: str = ""
    holds: str | None = None
    former: list[str] = dataclass_field(default_factory=list)


class _Parser:
    def __init__(self, text: str, file: str) -> None:
        self.file = file
        self.docs: list[str] = []
        self.lines = self._split(text)
        self.structs: dict[str, tuple[Field, ...]] = {}
        self.at = 0
        self.number = 1

    def error(self, text: str) -> GrammarError:
        return GrammarError(f"{self.file}:{self.number}: {text}")

    def _split(self, text: str) -> list[Line]:
        lines: list[Line] = []
        for number, raw in enumerate(text.split("\n"), 1):
            words = raw.lstrip(" ")
            if not words:
                continue
            if words[0] == "#":
                if not lines:
                    self.docs.append(words[1:].strip())
                continue
            spaces = len(raw) - len(words)
            self.number = number
            if "\t" in raw or spaces % INDENT:
                raise self.error(f"indent by {INDENT} spaces a level")
            lines.append(Line(number, spaces // INDENT, words.rstrip()))
        return lines

    def parse(self) -> Parsed:
        head: dict[str, str] = {}
        messages: dict[str, Message] = {}
        while self.at < len(self.lines):
            line = self.lines[self.at]
            self.number = line.number
            self.at += 1
            if line.level:
                raise self.error("a field outside of a message")
            word, _, rest = line.text.partition(" ")
            if word in ("request", "response", "message"):
                self._message(line, messages)
            elif word == "struct":
                self._struct(rest)
            elif word in ("api", "listeners", "removed", "unstable", "formerly") and not messages:
                if word in head:
                    raise self.error(f"{word} is said twice")
                if (word == "api") == bool(head):
                    raise self.error("the file's first line is its api")
                head[word] = rest
            else:
                raise self.error(f"expected request, response, message or struct, not {line.text!r}")
        self.number = 1
        if not head:
            return Parsed(None, messages)
        return Parsed(self._api(head, messages), {})

    def _api(self, head: dict[str, str], messages: dict[str, Message]) -> Api:
        key, _, name = head["api"].partition(" ")
        if not key.isdigit() or not _NAME.match(name):
            raise self.error("expected `api KEY Name`")
        if set(messages) != {"request", "response"}:
            raise self.error("an API has a request and a response")
        listeners = tuple(head.get("listeners", "none").split(", "))
        if not set(listeners) <= _LISTENERS and listeners != ("none",):
            raise self.error(f"unknown listener in {', '.join(listeners)}")
        request, response = (messages[what]._replace(name=name + what.title()) for what in ("request", "response"))
        if request.versions != response.versions:
            raise self.error("request and response have the same versions")
        return Api(
            int(key), name, request, response, () if listeners == ("none",) else listeners,
            tuple(head["formerly"].split(", ")) if "formerly" in head else (),
            self._versions(head["removed"]) if "removed" in head else NONE,
            self._versions(head["unstable"]) if "unstable" in head else NONE,
            " ".join(self.docs),
        )  # fmt: skip

    def _struct(self, name: str) -> None:
        if not _STRUCT.match(name) or name in self.structs:
            raise self.error(f"expected `struct Name` with a new name, not {name!r}")
        self.structs[name] = self._fields(1, Versions())

    def _message(self, line: Line, messages: dict[str, Message]) -> None:
        found = _HEAD.match(line.text)
        if found is None:
            raise self.error("expected `request VERSIONS[, flexible VERSIONS][, header H for VERSIONS]`")
        versions = self._versions(found["versions"])
        if versions.last == NEVER:
            raise self.error("a message's versions have an end")
        what = found["name"] or found["what"]
        fields = self._fields(1, Versions(versions.first))
        self.number = line.number
        if found["release"]:
            known = messages.get(what)
            if known is None or versions.first not in known.versions or versions.last not in known.versions:
                raise self.error(f"another layout of a {what} that is not there")
            variant = Variant(versions, found["release"], fields)
            messages[what] = known._replace(variants=(*known.variants, variant))
            self._check(fields, range(versions.first, versions.last + 1), known.flexible, line)
            return
        if what in messages:
            raise self.error(f"a second {what}")
        flexible = self._versions(found["flexible"]) if found["flexible"] else NONE
        if flexible.first <= flexible.last < NEVER:
            raise self.error("once flexible, always: write `flexible N+`")
        headers = ((self._versions(found["for"]), int(found["header"])),) if found["header"] else ()
        self._check(fields, range(versions.first, versions.last + 1), flexible, line)
        messages[what] = Message(what, versions, flexible, fields, (), self.file, headers)

    def _fields(self, level: int, around: Versions) -> tuple[Field, ...]:
        """The fields at `level` from here on; `around` is where their struct is."""
        fields: list[Field] = []
        while self.at < len(self.lines) and self.lines[self.at].level >= level:
            line = self.lines[self.at]
            self.number = line.number
            if line.level > level:
                raise self.error("indented too far")
            self.at += 1
            fields.append(self._field(line, around))
        return tuple(fields)

    def _field(self, line: Line, around: Versions) -> Field:
        found = _FIELD.match(line.text)
        if found is None:
            raise self.error(f"not a field: {line.text!r}")
        words = found["words"].split()
        if len(words) < 2 or not _NAME.match(words[0]):
            raise self.error(f"expected `Name type ...`, not {line.text!r}")
        name, kind = words[0], words[1]
        base = kind.removeprefix("[]")
        if base not in _PRIMITIVE and not _STRUCT.match(base):
            raise self.error(f"{name}: unknown type {kind!r}")
        rest = words[2:]
        if found["doc"] and re.search(r"\{.*\}", found["doc"]):
            raise self.error(f"{name}: `{{value meaning, ...}}` stands before the comment, or in a line below")
        versions = self._versions(rest.pop(0)) if rest and rest[0][0].isdigit() else around
        said = self._attributes(name, rest, versions)
        values = self._values(name, base, found["values"]) if found["values"] is not None else ()
        while self.at < len(self.lines) and self.lines[self.at].text[0] == "{":
            more = self.lines[self.at]
            self.number = more.number
            if more.level != line.level + 1 or more.text[-1] != "}":
                raise self.error("expected `{value meaning, ...}` below its field")
            values += self._values(name, base, more.text[1:-1])
            self.at += 1
        self.number = line.number
        fields: tuple[Field, ...] = ()
        if base not in _PRIMITIVE:
            fields = self._fields(line.level + 1, versions) or self.structs.get(base, ())
            self.number = line.number
            if not fields:
                raise self.error(f"{name}: the struct {base} has no fields")
        given = found["default"]
        array = kind != base
        shape = "array" if array else base if base in _PRIMITIVE else "struct"
        return Field(
            name=name,
            kind=shape,
            versions=versions,
            nullable=said.nullable,
            tag=said.tag,
            tagged=versions if said.tag is not None else NONE,
            default=None if given is None else self._default(name, shape, given, said.nullable),
            has_default=given is not None,
            element=(base if base in _PRIMITIVE else "struct") if array else None,
            type_name=None if base in _PRIMITIVE else base,
            fields=fields,
            flexible=NONE if said.inflexible else None,
            secret=said.secret,
            secret_by=said.secret_by,
            policy=said.policy,
            values=values,
            former=tuple(said.former),
            holds=said.holds,
            doc=found["doc"] or "",
            line=line.number,
        )

    def _attributes(self, name: str, words: list[str], versions: Versions) -> _Attributes:
        said = _Attributes()
        while words:
            word = words.pop(0)
            if word == "nullable" and said.nullable == NONE:
                said.nullable = self._versions(words.pop(0)) if words and words[0][0].isdigit() else versions
            elif word == "tag" and said.tag is None and words and words[0].isdigit():
                said.tag = int(words.pop(0))
            elif word == "was" and words:
                said.former.append(words.pop(0))
            elif word == "holds" and words:
                said.holds = words.pop(0)
            elif word in POLICIES and not said.policy:
                said.policy = word
            elif word == "inflexible":
                said.inflexible = True
            elif word == "secret" and len(words) > 1 and words[0] == "by":
                said.secret_by = words[1]
                del words[:2]
            elif word == "secret":
                said.secret = True
            else:
                raise self.error(f"{name}: what does {word!r} mean here?")
        return said

    def _values(self, name: str, kind: str, text: str) -> tuple[tuple[int | str, str], ...]:
        out: list[tuple[int | str, str]] = []
        for part in text.split(","):
            value, _, meaning = part.strip().partition(" ")
            number = value.removeprefix("-").isdigit()
            if not (number or value in ("null", "empty")) or not meaning:
                raise self.error(f"{name}: expected `{{value meaning, ...}}`, not {part.strip()!r}")
            if number and kind not in _INTEGERS:
                raise self.error(f"{name}: a {kind} is never {value}")
            out.append((int(value) if number else value, meaning))
        return tuple(out)

    def _default(self, name: str, kind: str, text: str, nullable: Versions) -> int | float | bool | str | None:
        if text == "null" and nullable != NONE:
            return None
        if kind in _INTEGERS and re.match(r"-?\d+\Z", text):
            return int(text)
        if kind == "float64" and re.match(r"-?\d+\.\d+\Z", text):
            return float(text)
        if kind == "bool" and text in ("true", "false"):
            return text == "true"
        if kind == "string" and text[0] == '"':
            return text[1:-1]
        raise self.error(f"{name}: {text!r} is no default of type {kind}")

    def _versions(self, text: str) -> Versions:
        found = _VERSIONS.match(text)
        if found is None or (found[3] and int(found[3]) < int(found[1])):
            raise self.error(f"{text!r} is no range of versions: write 3, 0-3 or 4+")
        first = int(found[1])
        return Versions(first, NEVER if found[2] else int(found[3]) if found[3] else first)

    def _check(self, fields: Sequence[Field], versions: range, flexible: Versions, line: Line) -> None:
        """Checks rules that need more than one line: names and tags are unique in every version, tags exist in flexible
        ones only."""
        for item in fields:
            self.number = item.line
            here = [version for version in versions if version in item.versions]
            if not here:
                raise self.error(f"{item.name}: in none of the versions around it")
            if item.tag is not None and any(version not in flexible for version in here):
                raise self.error(f"{item.name}: a tag in a version that is not flexible")
            if item.nullable != NONE and not any(version in item.nullable for version in here):
                raise self.error(f"{item.name}: nullable in versions which do not have it")
            if item.secret_by is not None and all(other.name != item.secret_by for other in fields):
                raise self.error(f"{item.name}: there is no {item.secret_by} beside it")
            for other in fields:
                if other is item:
                    break
                both = any(version in other.versions for version in here)
                if both and other.name == item.name:
                    raise self.error(f"{item.name} is there twice in one version")
                if both and item.tag is not None and other.tag == item.tag:
                    raise self.error(f"{item.name}: tag {item.tag} is {other.name}'s")
            if item.fields:
                self._check(item.fields, range(here[0], here[-1] + 1), flexible, line)
