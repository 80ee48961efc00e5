"""What Kafka's request logs cannot say, or say otherwise than the wire: the one list of excuses, there is no other.

Whole requests:

* FORWARDED: a controller logs the request inside an Envelope, with the Envelope's connection; Envelopes are not logged.
* LOGIN: ApiVersions, SaslHandshake and SaslAuthenticate before a login ends are not logged.
* EARLY, LATE: the log's span is a little wider than the capture's; long polls that began before it end inside it, and
  answers that the log has leave after its end, or to a client that has gone.
* ELSEWHERE: connections that the capture filter left out.
* STOPPED: a broker that stops or is killed does not log what it sent last; what it never answered is not logged.

Values:

* tagged fields at their default are left out: `DEFAULTS`;
* records are sizes only (`<name>_bytes`);
* a ShareFetch answer's records are shown as empty text, whatever they are;
* the body of an ApiVersions request of a version that the broker does not know is not read (`UNPARSED`);
* bytes behind a request's body are ignored by the broker, and undecodable to us (`SURPLUS`);
* a null client id is shown as an empty one;
* secrets compare by length; a configuration's value may be `[hidden]`.
"""

from __future__ import annotations

from bisect import bisect_left
from datetime import datetime, timedelta
from typing import Any

from tests.oracle.request_log import Entry

ZERO = "AAAAAAAAAAAAAAAAAAAAAA"
LOGIN_APIS = frozenset({17, 18, 36})
ENVELOPE = 58
SLACK = timedelta(milliseconds=60)
"""Between the instant at which a broker had sent an answer and the time of its log line."""

STOP = timedelta(seconds=1)
"""A running broker of these captures is never silent for so long: there are its followers' fetches."""

DEFAULTS: dict[tuple[int, str], dict[str, tuple[Any, ...]]] = {
    (0, "response"): {
        "responses.partition_responses.current_leader": ({"leader_id": -1, "leader_epoch": -1},),
        "node_endpoints": ([],),
    },
    (1, "request"): {
        "cluster_id": (None,),
        "replica_state": ({"replica_id": -1, "replica_epoch": -1},),
        "topics.partitions.replica_directory_id": (ZERO,),
        "topics.partitions.high_watermark": (2**63 - 1,),
    },
    (1, "response"): {
        "responses.partitions.diverging_epoch": ({"epoch": -1, "end_offset": -1},),
        "responses.partitions.current_leader": ({"leader_id": -1, "leader_epoch": -1},),
        "responses.partitions.snapshot_id": ({"end_offset": -1, "epoch": -1},),
        "node_endpoints": ([],),
    },
    (6, "request"): {"type": (0,)},
    (18, "response"): {
        "supported_features": ([],),
        "finalized_features_epoch": (-1,),
        "finalized_features": ([],),
        "zk_migration_ready": (False,),
    },
    (19, "response"): {"topics.topic_config_error_code": (0,)},
    (52, "response"): {"node_endpoints": ([],)},
    (53, "response"): {"node_endpoints": ([],)},
    (54, "response"): {"node_endpoints": ([],)},
    (59, "request"): {"cluster_id": (None,), "topics.partitions.replica_directory_id": (ZERO,)},
    (59, "response"): {
        "topics.partitions.current_leader": ({"leader_id": 0, "leader_epoch": 0},),
        "node_endpoints": ([],),
    },
    (63, "request"): {"offline_log_dirs": ([],), "cordoned_log_dirs": (None,)},
    (82, "response"): {
        "current_leader": ({"leader_id": -1, "leader_epoch": -1, "host": "", "port": 0},),
    },
}  # fmt: skip
"""(API key, side) -> path -> default of a tagged field (Kafka's message definitions)."""

SECRETS: dict[tuple[int, str], frozenset[str]] = {
    (33, "request"): frozenset({"resources.configs.value"}),
    (36, "request"): frozenset({"auth_bytes"}),
    (36, "response"): frozenset({"auth_bytes"}),
    (38, "response"): frozenset({"hmac"}),
    (39, "request"): frozenset({"hmac"}),
    (40, "request"): frozenset({"hmac"}),
    (41, "response"): frozenset({"tokens.hmac"}),
    (44, "request"): frozenset({"resources.configs.value"}),
    (51, "request"): frozenset({"upsertions.salt", "upsertions.salted_password"}),
    (32, "response"): frozenset({"results.configs.value", "results.configs.synonyms.value"}),
    (19, "request"): frozenset({"topics.configs.value"}),
    (19, "response"): frozenset({"topics.configs.value"}),
}
"""Fields that may be null with their length beside them. Configurations unless Kafka defines them."""

HIDDEN = "[hidden]"
SURPLUS = frozenset({("raw_errors", 3, 5)})
"""(Capture, API key, version) of requests sent with bytes behind their body."""


def why_body_differs(capture: str, entry: Entry, row: dict[str, Any], side: str) -> str | None:
    """The excuse for a logged body that is not a row of the messages' table, or None."""
    if side == "request" and entry.key == 18 and entry.request == {} and (entry.response or {}).get("error_code") == 35:
        return "UNPARSED"
    if side == "response" and row["response_last_at"] is None:
        return "LATE"
    if side == "request" and (capture, entry.key, entry.version) in SURPLUS and row["status"] == "undecodable":
        return "SURPLUS"
    return None


def why_not_on_wire(entry: Entry, began: datetime, ended: datetime, endpoints: frozenset[Any]) -> str | None:
    """The excuse for a logged request that the capture does not have, or None when there is none."""
    if entry.forwarded:
        return "FORWARDED"
    if entry.at - timedelta(milliseconds=entry.total_ms) < began + SLACK:
        return "EARLY"
    if entry.at > ended:
        return "LATE"
    if entry.client not in endpoints:
        return "ELSEWHERE"
    return None


def why_not_logged(row: dict[str, Any], logins: frozenset[str], lines: dict[Any, list[datetime]]) -> str | None:
    """The excuse for an exchange that the log does not have, or None. `lines`: times of each broker's lines, sorted."""
    if row["status"] == "orphan":
        return "EARLY"
    if row["response_last_at"] is None:
        return "UNANSWERED"
    if row["api_key"] == ENVELOPE:
        return "FORWARDED"
    if row["api_key"] in LOGIN_APIS and row["connection_id"] in logins:
        return "LOGIN"
    times = lines[row["broker_ip"], row["broker_port"]]
    after = bisect_left(times, row["response_last_at"])
    if after == len(times) or times[after] > row["response_last_at"] + STOP:
        return "STOPPED"
    return None
