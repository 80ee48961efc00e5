"""The schema as Lua tables: names, types, what is not there twice."""

from __future__ import annotations

from kdissect.schema import index
from kdissect.schema.model import REQUEST, RESPONSE
from kdissect.wireshark.lua_tables import FieldNames, held_messages, quoted, tables
from kdissect.wireshark.plugin import MARK, plugin


def test_every_field_of_every_message_has_a_name() -> None:
    names = FieldNames(index.load())
    for api in index.load().apis.values():
        for side in (REQUEST, RESPONSE):
            for path, item in api.message(side).walk():
                assert item.name == path[-1]
    assert "kdissect.fetch.session_epoch" in names.shown
    assert "kdissect.metadata.topics.partitions.leader_id" in names.shown
    assert names.shown["kdissect.sasl_authenticate.auth_bytes_bytes"].kind == "uint32"
    assert "kdissect.sasl_authenticate.auth_bytes" not in names.shown
    assert names.shown["kdissect.describe_groups.groups"].kind == "count"
    assert names.shown["kdissect.describe_groups.request.groups"].kind == "string"


def test_payloads_that_bytes_hold() -> None:
    assert set(held_messages(index.load())) == {
        "ConsumerProtocolSubscription", "ConsumerProtocolAssignment", "DefaultPrincipalData"
    }  # fmt: skip


def test_text_is_quoted() -> None:
    assert quoted('a "b" \\ c\nd') == '"a \\"b\\" \\\\ c\\nd"'


def test_one_file_with_its_mark() -> None:
    lua, names = tables(index.load())
    text = plugin()
    assert text.startswith(MARK)
    assert lua in text
    assert all(f'"{name}"' in lua for name in names.shown)
    assert all(ord(character) < 128 for character in text)
