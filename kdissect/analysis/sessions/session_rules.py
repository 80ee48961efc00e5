"""The rules of fetch sessions (KIP-227) as seen from the wire: kinds, outcomes, what each combination does.

A broker keeps fetch sessions in a cache: an id that it drew, the epoch that it expects next, and a set of partitions
with, for each, what was sent last. A request names (session id, epoch):

    (0, -1)      sessionless: everything is named, nothing is kept (and all requests of v0-6)
    (0, 0)       create: everything is named; the broker may keep a session and answers with its id, or with 0
    (id, 0)      replace: the session is removed, then as create
    (id, -1)     close: the session is removed, then as sessionless
    (id, n)      incremental: only what changed is named; the rest of the session's set is implied

On an incremental request the broker checks in this order: unknown id (error 70), another epoch than expected (71),
names where the session has topic ids or the other way round (106, the v13 boundary). These answers carry session id 0,
change nothing and do not count as uses. Otherwise the request is accepted: its partitions are added or altered, then
its forgotten ones removed, and the expected epoch advances (after 2^31-1 comes 1), whatever the answer is then: a
throttled answer comes from an accepted request, and so does a 71 WITH the session id (another request of the session
was accepted while this one waited). A set that has become empty ends the session, and the answer carries id 0.
An incremental answer lists a partition only if it has records, an error, a diverging epoch, a preferred replica, or a
high watermark or log start offset other than what was sent last (after an error the former counts as unknown).

A session is not tied to a connection: it is known by (broker, id). Ids are random, so an id that comes again is
another incarnation. Evictions happen silently; they show when somebody is told 70, or when the id is given anew.

What the tracker does: uses take effect when the request's last byte arrived, creations when the response's first byte
left, in the order of these instants (creations first among equal ones, then by connection and ordinal). TRANSITIONS
says what happens to the session named, by request kind and outcome.

- A session whose creation was not captured begins with its first accepted use (`adopt`): it is left-censored, its set
  of partitions unknown; those that requests name or answers list are members, more may be.
- A request without an answer (`assume`) is taken as accepted if its epoch is the expected one: the broker advances
  before it waits. It does not count as the last accepted epoch until an answer says so.
- An accepted epoch other than the expected one means that uses were not captured. The epoch is followed, and the set
  of partitions is unknown from there on. So it is after a refusal of the epoch that was expected.
- An epoch beyond the expected one is `not_captured` where requests of its connection may be missing since the session's
  last accepted use: no capture ran then, bytes are missing, or a snap length cut a request. It is a `gap` where all of
  them were captured.

Since Kafka 3.8 a broker's cache is cut into 8 shards, each for an equal range of ids.
"""

from __future__ import annotations

import numpy as np

KINDS = ("sessionless", "create", "replace", "close", "incremental")
SESSIONLESS, CREATE, REPLACE, CLOSE, INCREMENTAL = range(5)

OUTCOMES = (
    "created",
    "refused",
    "continued",
    "closed",
    "evicted_or_unknown",
    "epoch_error",
    "topic_id_error",
    "throttled",
    "error",
)
CREATED, REFUSED, CONTINUED, CLOSED, EVICTED_OR_UNKNOWN, EPOCH_ERROR, TOPIC_ID_ERROR, THROTTLED, ERROR = range(9)
NO_OUTCOME = 9
"""No response was read (column of TRANSITIONS)."""

EPOCH_STATUS = ("ok", "repeat", "gap", "wrapped", "unknown_start", "not_captured")
OK, REPEAT, GAP, WRAPPED, UNKNOWN_START, NOT_CAPTURED = range(6)

END_REASONS = ("closed", "replaced", "empty", "evicted", "open")
ENDED_CLOSED, ENDED_REPLACED, ENDED_EMPTY, ENDED_EVICTED, STILL_OPEN = range(5)

REASONS = (
    "full",
    "records",
    "error",
    "diverging_epoch",
    "preferred_replica",
    "high_watermark",
    "log_start_offset",
    "unknown",
)
FULL, RECORDS, PARTITION_ERROR, DIVERGING, PREFERRED, HIGH_WATERMARK, LOG_START, UNKNOWN_REASON = range(8)

NOTHING, ACCEPT, ACCEPT_EMPTY, ASSUME, REFUSE, END_CLOSED, END_REPLACED, END_EVICTED = range(8)
"""What a request does to the session it names."""

TRANSITIONS = np.array(
    [
        # created, refused, continued, closed, 70, 71, 106, throttled, error, no answer
        [NOTHING] * 10,
        [NOTHING] * 10,
        [END_REPLACED] * 10,
        [END_CLOSED] * 10,
        [NOTHING, NOTHING, ACCEPT, ACCEPT_EMPTY, END_EVICTED, REFUSE, REFUSE, NOTHING, ASSUME, ASSUME],
    ],
    np.int8,
)  # fmt: skip
"""[kind, outcome] -> action. A `created` outcome besides opens the session that the response names. A 71 with the
session id in its response is ACCEPT instead (see above)."""

SESSION_ID_NOT_FOUND = 70
INVALID_SESSION_EPOCH = 71
SESSION_TOPIC_ID_ERROR = 106

LAST_EPOCH = 2**31 - 1
"""The epoch after which 1 comes."""
FIRST_FLEXIBLE_VERSION = 12
FIRST_TOPIC_ID_VERSION = 13
SHARDS = 8
"""NumFetchSessionCacheShards of Kafka 3.8 and later; before there was one cache."""
SHARD_RANGE = (2**31 - 1) // SHARDS
FIRST_SHARDED_FETCH_VERSION = 17
"""Fetch versions that no broker without shards has (3.9 brought 17)."""
DEFAULT_SLOTS = 1000
"""max.incremental.fetch.session.cache.slots as Kafka ships it."""

MAX_LIVE_SESSIONS = 1 << 18
"""Sessions followed at once, about 80 MB: a broker has 1,000 slots by default, so this is a fleet of 260 brokers with
full caches. Beyond it the session unused for longest is let go as `open`; used again, it is left-censored."""
MAX_LIVE_PARTITIONS = 1 << 20
"""Partitions in all sets together, about 80 MB: 1,000 sessions of 1,000 partitions. Beyond it the session unused for
longest loses its set (which is then unknown): clients that never reuse sessions leave sets behind that nobody needs."""
MAX_REMEMBERED = 1 << 20
"""Ids of ended sessions kept to tell incarnations apart, 16 MB. Then all are forgotten: that one of a million comes
again among 2^31 random ids, and so two sessions get one key, is rare enough."""
MAX_NAMES = 64
"""Client ids, and connections, listed for one session: honest sessions have one or two."""
MAX_WAITING = 1 << 16
"""Rows of fetches and partitions held back for the watermark, about 20 MB. Beyond it the earlier half is worked on: a
request that waits longer than thirty thousand later rows take has been forgotten."""
