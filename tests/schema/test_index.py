"""The index: APIs by key and name, header versions, error names, and how long loading takes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kdissect.problems import UsageError
from kdissect.schema import index
from kdissect.schema.grammar import GrammarError
from kdissect.schema.model import REQUEST, RESPONSE, Versions
from kdissect.schema.names import snake_case

NEXT = len(index.load().apis)
"""An API key that is not taken yet."""


@pytest.mark.parametrize(
    ("name", "key"),
    [("Fetch", 1), ("fetch", 1), ("LIST_OFFSETS", 2), ("list-offsets", 2), ("ListOffset", 2), ("AlterIsr", 56),
     ("ListClientMetricsResources", 74), (18, 18), ("18", 18)],
)  # fmt: skip
def test_an_api_by_any_of_its_names(name: str | int, key: int) -> None:
    assert index.load().find_api(name).key == key


@pytest.mark.parametrize(
    ("name", "hint"), [("Fech", "did you mean Fetch?"), ("zzz", "'zzz'"), (NEXT, str(NEXT)), (-1, "-1")]
)
def test_an_unknown_api(name: str | int, hint: str) -> None:
    with pytest.raises(UsageError, match="there is no API") as caught:
        index.load().find_api(name)
    assert hint in str(caught.value)


def test_directions() -> None:
    assert (index.side_of("request"), index.side_of("Response")) == (REQUEST, RESPONSE)
    with pytest.raises(UsageError, match="a direction is request or response, not 'answer'"):
        index.side_of("answer")


def test_header_versions() -> None:
    assert [index.request_header_version(1, version) for version in (0, 11, 12, 18, 40)] == [1, 1, 2, 2, 2]
    assert [index.response_header_version(1, version) for version in (0, 11, 12, 18, 40)] == [0, 0, 1, 1, 1]
    assert [index.response_header_version(18, version) for version in range(7)] == [0] * 7, "KIP-511"
    assert [index.request_header_version(18, version) for version in (2, 3)] == [1, 2]
    assert [index.request_header_version(7, version) for version in range(4)] == [0, 1, 1, 2], "no client id in v0"
    assert [index.request_header_version(17, version) for version in (0, 1)] == [1, 1], "SaslHandshake never changes"
    assert (index.request_header_version(999, 3), index.response_header_version(999, 3)) == (1, 0)


def test_names_of_apis_and_errors() -> None:
    assert (index.api_name(3), index.api_name(999), index.api_name(-1)) == ("Metadata", "key 999", "key -1")
    names = index.error_names()
    assert sorted(names) == list(range(-1, 137))
    assert len(set(names.values())) == 138
    assert (names[-1], names[0], names[3]) == ("UNKNOWN_SERVER_ERROR", "NONE", "UNKNOWN_TOPIC_OR_PARTITION")
    assert (names[35], names[71]) == ("UNSUPPORTED_VERSION", "INVALID_FETCH_SESSION_EPOCH")
    assert names[136] == "CONTROLLER_ID_NOT_REGISTERED"
    assert (index.error_name(70), index.error_name(500)) == ("FETCH_SESSION_ID_NOT_FOUND", "error 500")


def test_what_the_newest_release_dropped_or_may_change() -> None:
    apis = index.load().apis
    assert {key for key, api in apis.items() if api.removed.last == api.request.versions.last} == {4, 5, 6, 7}
    assert apis[1].removed == Versions(0, 3)
    assert {key: api.unstable for key, api in apis.items() if 0 in api.unstable or api.unstable.last >= 0} == {
        22: Versions(6, 6)
    }


def test_payloads() -> None:
    assert {"RequestHeader", "ResponseHeader", "ConsumerProtocolSubscription", "DefaultPrincipalData"} <= set(
        index.load().payloads
    )
    held = {item.holds for message in index.load().messages() for _, item in message.walk() if item.holds}
    assert held - {"request", "response"} <= set(index.load().payloads)


def test_credentials_are_marked() -> None:
    secret = {f"{m.name}.{'.'.join(path)}" for m in index.load().messages() for path, item in m.walk() if item.secret}
    assert secret == {
        "SaslAuthenticateRequest.AuthBytes", "SaslAuthenticateResponse.AuthBytes", "CreateDelegationTokenResponse.Hmac",
        "RenewDelegationTokenRequest.Hmac", "ExpireDelegationTokenRequest.Hmac",
        "DescribeDelegationTokenResponse.Tokens.Hmac", "AlterUserScramCredentialsRequest.Upsertions.Salt",
        "AlterUserScramCredentialsRequest.Upsertions.SaltedPassword",
    }  # fmt: skip
    by_name = {
        f"{m.name}.{'.'.join(path)}" for m in index.load().messages() for path, item in m.walk() if item.secret_by
    }
    assert by_name == {
        "CreateTopicsRequest.Topics.Configs.Value", "CreateTopicsResponse.Topics.Configs.Value",
        "DescribeConfigsResponse.Results.Configs.Value", "DescribeConfigsResponse.Results.Configs.Synonyms.Value",
        "AlterConfigsRequest.Resources.Configs.Value", "IncrementalAlterConfigsRequest.Resources.Configs.Value",
    }  # fmt: skip


def test_column_names_are_unique_in_every_struct() -> None:
    for message in index.load().messages():
        for fields in [message.fields, *(item.fields for _, item in message.walk())]:
            names: dict[str, str] = {}
            for item in fields:
                assert names.setdefault(snake_case(item.name), item.name) == item.name, (message.name, item.name)


@pytest.mark.parametrize(
    ("name", "column"),
    [("ThrottleTimeMs", "throttle_time_ms"), ("Enable2Pc", "enable2_pc"), ("V3AndBelowTopics", "v3_and_below_topics"),
     ("isKRaftController", "is_k_raft_controller"), ("ZkVersion", "zk_version"), ("Hmac", "hmac")],
)  # fmt: skip
def test_names_of_columns(name: str, column: str) -> None:
    assert snake_case(name) == column


def test_digest_follows_the_text() -> None:
    assert index.digest() == index.digest()
    assert len(index.digest()) == 64


def test_two_files_with_one_key_or_one_name() -> None:
    body = "request 0\nresponse 0\n"
    with pytest.raises(GrammarError, match="has key 1 already"):
        index.build({"001_a.kmsg": f"api 1 A\n{body}", "001_b.kmsg": f"api 1 B\n{body}"})
    with pytest.raises(GrammarError, match="is called A too"):
        index.build({"001_a.kmsg": f"api 1 A\n{body}", "002_b.kmsg": f"api 2 B\nformerly A\n{body}"})
    with pytest.raises(GrammarError, match="the file's name says `api 1`"):
        index.build({"001_a.kmsg": f"api 2 A\n{body}"}).apis[1]


def test_loading_is_light() -> None:
    """No numba, numpy or pyarrow to read the schema: the time is the bench's business, what is loaded is ours."""
    code = (
        "import sys; from kdissect.schema import index, explain, bnf; index.load(); list(index.load().messages());"
        "print([m for m in ('numba', 'numpy', 'pyarrow', 'scapy') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
