"""The `.kmsg` grammar: what a line means, and what is said of one that means nothing."""

from __future__ import annotations

import pytest

from kdissect.schema.grammar import GrammarError, parse
from kdissect.schema.model import NEVER, NONE, Field, Versions

SMALL = """\
# Does something
# for the tests.
api 7 Sample
listeners broker, controller
removed 0
unstable 3
formerly Example, Specimen

struct Pair
  Key    string
  Value  string  nullable secret by Key

request 0-3, flexible 2+, header 0 for 0
  A       int32      0-1 = -1  # the first
  B       []string   1+  nullable 2+
  C       []Pair     2+  tag 1
  D       Deep       3+  nullable tag 0 = null
    Inner  int8       {-1 nothing, 3 three}  # with meanings
    Bits   float64  = 0.5
  E       bytes  holds Other
  F       int8   was Former was Older
    {0 none, 1 one}
    {2 two}

request 1 as in 0.9
  A       int64

response 0-3
"""


def fields(text: str, **more: str) -> tuple[Field, ...]:
    """The fields of a message of versions 0 to 3, flexible from 2."""
    found = parse(f"message Sample 0-3, flexible 2+\n{text}", "sample.kmsg")
    return found.messages["Sample"].fields


def field(line: str) -> Field:
    (only,) = fields(f"  {line}\n")
    return only


def test_an_api() -> None:
    api = parse(SMALL, "007_sample.kmsg").api
    assert api is not None
    assert (api.key, api.name, api.listeners) == (7, "Sample", ("broker", "controller"))
    assert (api.removed, api.unstable, api.former_names) == (Versions(0, 0), Versions(3, 3), ("Example", "Specimen"))
    assert api.doc == "Does something for the tests."
    assert (api.request.name, api.response.name) == ("SampleRequest", "SampleResponse")
    assert api.request.file == "007_sample.kmsg"
    assert (api.request.versions, api.request.flexible) == (Versions(0, 3), Versions(2, NEVER))
    assert api.request.headers == ((Versions(0, 0), 0),)
    assert (api.response.flexible, api.response.fields, api.response.headers) == (NONE, (), ())
    (variant,) = api.request.variants
    assert (variant.versions, variant.release, variant.fields[0].kind) == (Versions(1, 1), "0.9", "int64")


def test_its_fields() -> None:
    api = parse(SMALL, "007_sample.kmsg").api
    assert api is not None
    a, b, c, d, e, f = api.request.fields
    assert (a.kind, a.versions, a.default, a.has_default, a.doc, a.line) == (
        "int32", Versions(0, 1), -1, True, "the first", 14,
    )  # fmt: skip
    assert (b.kind, b.element, b.type_name, b.nullable) == ("array", "string", None, Versions(2, NEVER))
    assert (c.kind, c.element, c.type_name, c.tag, c.tagged) == ("array", "struct", "Pair", 1, Versions(2, NEVER))
    assert [item.name for item in c.fields] == ["Key", "Value"]
    assert c.fields[1].secret_by == "Key"
    assert (d.kind, d.type_name, d.nullable, d.default, d.has_default) == (
        "struct",
        "Deep",
        Versions(3, NEVER),
        None,
        True,
    )
    inner, bits = d.fields
    assert inner.versions == d.versions, "without versions, wherever its struct is"
    assert (inner.values, inner.doc) == (((-1, "nothing"), (3, "three")), "with meanings")
    assert bits.default == 0.5
    assert (e.holds, e.versions) == ("Other", Versions(0, NEVER))
    assert (f.former, f.values) == (("Former", "Older"), ((0, "none"), (1, "one"), (2, "two")))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('A string = "text # not a comment"  # a comment', "text # not a comment"),
        ("A string nullable = null", None),
        ("A bool = true", True),
        ("A int64 = -9223372036854775808", -(2**63)),
        ("A float64 = -1.5", -1.5),
    ],
)
def test_defaults(line: str, expected: object) -> None:
    found = field(line)
    assert found.has_default
    assert found.default == expected


def test_attributes() -> None:
    assert field("A bytes secret").secret
    assert field("A string inflexible").flexible == NONE
    assert field("A string").flexible is None
    assert field("A []int32 1-2 {empty none, null all, 7 seven}").values == (
        ("empty", "none"),
        ("null", "all"),
        (7, "seven"),
    )
    assert field("isLower bool").name == "isLower"


def test_the_same_struct_twice() -> None:
    left, right = fields("  L Pair\n    X int8\n  R Pair\n    Y int8 1+\n")
    assert (left.fields[0].name, right.fields[0].name) == ("X", "Y")


BAD_FIELDS = {
    "A": "expected `Name type",
    "a-b int32": "expected `Name type",
    "A int33": "unknown type 'int33'",
    "A []": "unknown type '[]'",
    "A int32 3-1": "no range of versions",
    "A int32 2++": "no range of versions",
    "A int32 7+": "in none of the versions around it",
    "A int32 nullable nullable": "what does 'nullable' mean here",
    "A int32 tag": "what does 'tag' mean here",
    "A int32 tag 0": "a tag in a version that is not flexible",
    "A int32 1-2 tag 0": "a tag in a version that is not flexible",
    "A string 0-1 nullable 2+": "nullable in versions which do not have it",
    "A int32 sekret": "what does 'sekret' mean here",
    "A int32 = null": "no default of type int32",
    "A int32 = 1.5": "no default of type int32",
    "A string = text": "no default of type string",
    "A bool = 1": "no default of type bool",
    "A uuid = 0": "no default of type uuid",
    "A int8 {one}": "expected `{value meaning",
    "A int8 {x one}": "expected `{value meaning",
    "A string {1 one}": "a string is never 1",
    "A int8 {1 one": "not a field",
    "A int8  # what it is {1 one}": "stands before the comment",
    "A Struct": "the struct Struct has no fields",
    "A string secret by B": "there is no B beside it",
}


@pytest.mark.parametrize(("line", "text"), BAD_FIELDS.items())
def test_a_bad_field_is_named_by_file_and_line(line: str, text: str) -> None:
    with pytest.raises(GrammarError) as caught:
        parse(f"message M 0-3, flexible 2+\n  Good int8\n  {line}\n", "bad.kmsg")
    assert str(caught.value).startswith("bad.kmsg:3: ")
    assert text in str(caught.value)


BAD_FILES = {
    "  A int8\n": (1, "a field outside of a message"),
    "message M 0\n   A int8\n": (2, "indent by 2 spaces"),
    "message M 0\n\tA int8\n": (2, "indent by 2 spaces"),
    "message M 0\n    A int8\n": (2, "indented too far"),
    "message M 0\n  A int8\n    B int8\n": (3, "indented too far"),
    "message M 0\n  A int8\n    {1 one\n": (3, "below its field"),
    "message M 0+\n": (1, "have an end"),
    "message M\n": (1, "expected `request"),
    "message M 0\nmessage M 1\n": (2, "a second M"),
    "message M 0-3, flexible 2-3\n": (1, "once flexible, always"),
    "message M 0 as in 1.0\n": (1, "is not there"),
    "message M 0-1\n  A int8\nmessage M 2 as in 1.0\n  A int8\n": (3, "is not there"),
    "message M 0\n  A int8\n  A int8\n": (3, "twice in one version"),
    "message M 0, flexible 0+\n  A int8 tag 0\n  B int8 tag 0\n": (3, "tag 0 is A's"),
    "struct s\n  A int8\n": (1, "expected `struct Name`"),
    "struct S\n  A int8\nstruct S\n  A int8\n": (3, "with a new name"),
    "nonsense\n": (1, "expected request"),
    "listeners broker\napi 1 X\n": (1, "first line is its api"),
    "api 1 X\nlisteners broker\nlisteners broker\n": (3, "said twice"),
    "api X 1\nrequest 0\nresponse 0\n": (1, "api KEY Name"),
    "api 1 X\nrequest 0\n": (1, "a request and a response"),
    "api 1 X\nlisteners nobody\nrequest 0\nresponse 0\n": (1, "unknown listener"),
    "api 1 X\nrequest 0\nresponse 0-1\n": (1, "the same versions"),
}


@pytest.mark.parametrize(("text", "expected"), BAD_FILES.items())
def test_a_bad_file_is_named_by_line(text: str, expected: tuple[int, str]) -> None:
    with pytest.raises(GrammarError) as caught:
        parse(text, "bad.kmsg")
    line, words = expected
    assert str(caught.value).startswith(f"bad.kmsg:{line}: "), caught.value
    assert words in str(caught.value)
