"""Layouts as text."""

from __future__ import annotations

import pytest

from kdissect.problems import UsageError
from kdissect.schema import bnf, index

NEWEST = index.load().apis[1].request.versions.last
"""The newest version of Fetch."""

HEARTBEAT = """\
RequestHeader (Version: 1) => request_api_key request_api_version correlation_id client_id
  request_api_key => INT16
  request_api_version => INT16
  correlation_id => INT32
  client_id => NULLABLE_STRING

Heartbeat Request (Version: 3) => group_id generation_id member_id group_instance_id
  group_id => STRING
  generation_id => INT32
  member_id => STRING
  group_instance_id => NULLABLE_STRING"""

VOTE = """\
ResponseHeader (Version: 1) => correlation_id _tags
  correlation_id => INT32

Vote Response (Version: 2) => error_code [topics] _tags
  error_code => INT16
  topics => topic_name [partitions] _tags
    topic_name => COMPACT_STRING
    partitions => partition_index error_code leader_id leader_epoch vote_granted _tags
      partition_index => INT32
      error_code => INT16
      leader_id => INT32
      leader_epoch => INT32
      vote_granted => BOOLEAN
  _tags 0: node_endpoints => node_id host port _tags
    node_id => INT32
    host => COMPACT_STRING
    port => UINT16"""


def test_layouts() -> None:
    assert bnf.layout("heartbeat", 3, "request", docs=False) == HEARTBEAT
    assert bnf.layout("Vote", 2, "response", docs=False) == VOTE


def test_with_meanings() -> None:
    text = bnf.layout("Fetch", 12, "request")
    assert text.startswith("# Consumers and followers read records")
    lines = text.split("\n")
    (line,) = [line for line in lines if line.strip().startswith("isolation_level")]
    assert line == (
        "  isolation_level => INT8                       "
        "# read_committed stops at the last stable offset; 0 read_uncommitted, 1 read_committed"
    )
    assert "  _tags 0: cluster_id => COMPACT_NULLABLE_STRING = null" in text
    assert "nullable" in next(line for line in bnf.layout(3, 9, "request").split("\n") if " topics =>" in line)


def test_the_exceptions() -> None:
    assert bnf.layout("ApiVersions", 4, "response", docs=False).startswith("ResponseHeader (Version: 0)")
    assert bnf.layout("ControlledShutdown", 0, "request", docs=False).startswith("RequestHeader (Version: 0)")
    both = bnf.layout("ConsumerGroupHeartbeat", 0, "request")
    assert "(Version: 0) =>" in both
    assert "(Version: 0, as in Kafka 3.5-3.6) =>" in both


def test_what_changed() -> None:
    assert bnf.diff("Metadata", 12, 13) == (
        "Metadata request, version 12 to 13: the same\n"
        "Metadata response, version 12 to 13\n"
        "  + error_code INT16                              # last in the response, for the request as a whole"
    )
    changed = bnf.diff("Fetch", 12, 13)
    assert "  - topics.topic STRING" in changed
    assert "  + topics.topic_id UUID" in changed
    assert "* flexible" not in changed
    assert "* flexible: compact lengths, structs end with tags" in bnf.diff("Fetch", 11, 12)
    assert "* no longer flexible" in bnf.diff("Fetch", 12, 11)
    assert "+ cluster_id STRING, tag 0, nullable" in bnf.diff("Fetch", 11, 12)


def test_all_apis() -> None:
    lines = bnf.apis().split("\n")
    assert len(lines) == 1 + len(index.load().apis)
    assert lines[0].split() == ["key", "name", "versions", "flexible", "listeners"]
    assert lines[2].split() == ["1", "Fetch", f"0-{NEWEST}", "12+", "broker,", "controller", "removed:", "0-3"]
    assert "never" in lines[18]
    assert lines[57].endswith("removed: 0-1; formerly AlterIsr")
    assert all(line == line.rstrip() for line in lines)


def test_every_layout_can_be_written() -> None:
    for key, api in index.load().apis.items():
        for version in range(api.request.versions.last + 1):
            for direction in ("request", "response"):
                assert f"{api.name} {direction.title()} (Version: {version})" in bnf.layout(key, version, direction)


def test_bad_arguments() -> None:
    with pytest.raises(UsageError, match=f"Fetch has versions 0-{NEWEST}, not {NEWEST + 1}"):
        bnf.layout("Fetch", NEWEST + 1, "request")
    with pytest.raises(UsageError, match=f"Fetch has versions 0-{NEWEST}, not 99"):
        bnf.diff("Fetch", 1, 99)
    with pytest.raises(UsageError, match="did you mean Fetch"):
        bnf.layout("fetsch", 1, "request")
