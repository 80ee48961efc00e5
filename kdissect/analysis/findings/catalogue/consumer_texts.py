"""Findings about consumers: pauses, quotas, polling and lag."""

from __future__ import annotations

from kdissect.analysis.findings.catalogue.kind import CLIENT, NOTHING_MISSING, Kind

KINDS = {
    "consumer_silent": Kind(
        cause="client",
        rule=(
            "A consumer sent 20 fetches or more and then nothing at all, on any connection, for 2 s or more; 5 "
            "fetches or more followed. No answer was due to it. Its other waits between two fetches are an eighth "
            "of that at most. Its connections stayed open, and they have fewer copies of segments than "
            "retransmission timers would have sent. No other client was silent for most of that time, or may have been "
            "behind an answer that is missing. Not where the capture lacks other connections of the client: it has the "
            "beginning of one, and no Metadata request." + NOTHING_MISSING
        ),
        headline="client {client} asked for nothing for {lasted:ms}",
        sentence=(
            "{client:who} fetched steadily, then sent nothing on any connection for {lasted:ms} from {first:clock} "
            "on, and went on. No answer was due to it and its connections stayed open. Its process stood still "
            "(suspended, garbage collection, no CPU), or its application did not poll."
        ),
        advice=(
            "Look at that process at that moment: garbage collection log, CPU limits, suspension; and at what its "
            "application did between two polls."
        ),
        needs=(
            "`exchanges` (client_id, api_key, status, request_first_at, response_first_at), `fetches` (requested_at), "
            "`connections` (lost_segments, retransmitted_bytes, start_seen, missing_bytes)"
        ),
        cannot_tell=(
            "a process that stood still from an application that did not poll. `producer_silent` reports producers."
        ),
        example="lab/consumer_stopped_aiokafka",
        starts=True,
        settled_at=CLIENT,
    ),
    "client_paused": Kind(
        cause="client",
        rule=(
            "A consumer got records and had no Fetch open at any broker for 1 s or more. It was not throttled, did "
            "not join its group, and did not wait for an answer that had to be sent again. Its host was refused no "
            "connection meanwhile. Medium when that is half of at least 3 s; where the client was met in its middle, "
            "half of that and of the longest pause. Low when the client sent nothing else either for 2 s, and that is "
            "rare for it. Else info." + NOTHING_MISSING
        ),
        headline="{client:who} asked for no more records for {longest:ms}",
        sentence=(
            "{client:who} got records and asked for no more for {total:ms} of {span:ms} in all ({pauses:times}, "
            "longest {longest:ms}, from {worst:clock} on). Its application was at work, stood still, or had paused its "
            "partitions."
        ),
        advice=(
            "Look at what the application does with a poll's records; fewer at once (max.poll.records) or more "
            "instances help."
        ),
        needs=(
            "`fetches` (requested_at, response_first_at, record_bytes, throttle_ms), `exchanges` "
            "(response_resent_ms, status), `connections` (start_seen, client_ip, end_reason, missing_bytes)"
        ),
        cannot_tell=(
            "whether the application worked, slept, was suspended or had paused its partitions. Consumers that never "
            "asked again do not count."
        ),
        example="stories/slow_consumer",
        starts=True,
    ),
    "clients_paused_together": Kind(
        cause="client",
        rule=(
            "Two clients or more of one address stopped at the same instant, sent nothing on any connection for 1 "
            "s or more, and went on within 200 ms. No answer was due to them, and such silences are rare for each of "
            "them. Segments were sent again on no two connections of their host. It acknowledged an answer 200 ms "
            "after its last request and later, or another of its clients went on. Other clients went on or were "
            "answered meanwhile, or there are none." + NOTHING_MISSING
        ),
        headline="clients {clients:list} at {host} stood still for {took:ms}",
        sentence=(
            "Clients {clients:list} at {host} sent nothing for {took:ms} from {first:clock} on and went on "
            "together at {back:clock}. No answer was due to them by then. Their process or host stood still (garbage "
            "collection, suspended, no CPU)."
        ),
        advice=("Look at that host and process at that moment: garbage collection log, CPU limits, suspension, swap."),
        needs=(
            "`exchanges` (client_id, status, request_first_at, response_first_at, throttle_ms), `connections` "
            "(client_ip, lost_segments, missing_bytes)"
        ),
        cannot_tell=(
            "which of process and host stood still, and a pause in which no broker answered any client of that host. "
            "`consumer_silent` reports a pause of one consumer alone."
        ),
        example="stories/client_pause",
        starts=True,
    ),
    "throttled_client": Kind(
        cause="settings",
        rule="Answers with a throttle time. Low below 1 s in all, high from 60 s on.",
        headline="client {client} was throttled {count:times} by a quota",
        sentence="{client:who} was throttled {answers:times}, {total:ms} in all: it ran into a quota.",
        advice=("Raise its quota (producer_byte_rate, consumer_byte_rate, request_percentage) or let it send less."),
        needs="`exchanges` (throttle_ms)",
        cannot_tell="which of the quotas of the user, the client id or both.",
        example="stories/quotas",
        starts=True,
    ),
    "empty_polling": Kind(
        cause="settings",
        other_causes=("unknown",),
        rule=(
            "A client's fetches had 100 empty answers without an error, 20 or more a second for a second at least, "
            "each within 10 ms. They are nine of ten of all its fetches. Fetches of followers and of the quorum do "
            "not count. Where each of them let the broker wait 10 ms or more, the cause is unknown."
        ),
        headline="client {client} polls broker {broker} in a tight loop",
        sentence=(
            "{client:who} polls broker {broker} in a tight loop: {answers:#empty answer} in {took:ms} ({rate:n} a "
            "second).[ It lets the broker wait {wait:ms} at most.][ It lets the broker wait {agreed:ms}, which answers "
            "at once.]"
        ),
        advice="Look at what ends the wait: fetch.max.wait.ms and fetch.min.bytes of that client.",
        needs="`fetches` (record_bytes, latency_ms, max_wait_ms)",
        cannot_tell=(
            "why a broker answers before the wait is over: for fetch.min.bytes of 0, or for records that no client may "
            "read yet, because too few replicas have them."
        ),
        example="rules/polling",
    ),
    "limited_by_max_bytes": Kind(
        cause="settings",
        rule=(
            "Ten or more answers with as many bytes as max_bytes. Low where max_bytes holds no full batch of a "
            "producer (less than 16 kB; the default of fetch.max.bytes is 50 MB)."
        ),
        headline="{answers:#fetch response} to client {client} reached its fetch.max.bytes",
        sentence=(
            "{client:who} got {answers:#fetch response} filled to its max_bytes: the broker had more than it takes "
            "at a time.[ Its limit is {least:n} bytes (the default is 50 MB), so each costs a round trip.]"
        ),
        advice="Nothing is wrong while it catches up; afterwards a larger fetch.max.bytes needs fewer fetches.",
        needs="`fetches` (record_bytes, max_bytes)",
        cannot_tell="whether the client would take more.",
        example="base",
    ),
    "limited_by_partition_max_bytes": Kind(
        cause="settings",
        rule="Ten or more answers for a partition with as many bytes as partition_max_bytes.",
        headline="fetches of {place} reached max.partition.fetch.bytes {count:times}",
        sentence=(
            "{answers:#response} for partition {partition} of topic {topic} {answers:?was|were} filled to "
            "partition_max_bytes: the broker had more than one fetch takes."
        ),
        advice=(
            "Nothing is wrong while it catches up; afterwards a larger max.partition.fetch.bytes needs fewer fetches."
        ),
        needs="`fetch_partitions` (record_bytes, partition_max_bytes)",
        cannot_tell="whether the client would take more.",
        example="k4_session_eviction",
    ),
    "growing_lag": Kind(
        cause="client",
        rule=(
            "The first record that a client had not fetched from a partition had been in the log for 2 s or more. At "
            "four of five of its answers since this was last 1 s or less it had grown, at three at least, and its lag "
            "in records doubled over all. Where it asks for one partition too rarely, its answers for all "
            "partitions of the topic count. A record counts from when an answer to anybody showed that it was there. "
            "Behind open transactions a reader of committed records is not late. Clients that were throttled "
            "meanwhile are left alone. So are those whose time was others' or unknown for half of it, those on "
            "hosts that the network loses packets to, and those whom answers may not have reached for half of it: "
            "segments were sent again as often as TCP's timers do in so long."
        ),
        headline="client {client} is {behind:ms} behind on {place} and falls back further",
        sentence=(
            "{client:who} falls behind on {partitions:#partition} of topic {topic}. From {since:clock} to "
            "{until:clock} its lag on partition {partition} grew from {before:n} to {after:n} records. The next record "
            "there had been in the log for {behind:ms} or more by then."
        ),
        advice="Look at what the consumer does with its records, or add instances to its group.",
        needs=(
            "`fetch_partitions` (lag, high_watermark, last_stable_offset), `fetches` (client_id, response_first_at, "
            "isolation_level, throttle_ms, excess_ms)"
        ),
        cannot_tell=(
            "how far the group has committed (`commits_fall_behind`), and a slow application of a client that fetches "
            "ahead of it."
        ),
        example="rules/lagging",
        settled_at=CLIENT,
    ),
    "commits_stopped": Kind(
        cause="client",
        rule=(
            "A client asked to commit offsets at six instants or more, and then at none for 10 s or more, five times "
            "as long as ever before. Meanwhile its fetches of the partitions that it had committed went on by 20 "
            "records or more, in each quarter of the time by one. The connection of its last commit stayed open."
        ),
        headline="client {client} committed nothing for {took:ms} and fetched on",
        sentence=(
            "{client:who} of group {group} committed offsets every {gap:ms} (median) until {stopped:clock}, and none "
            "for {took:ms} from then on. Meanwhile it fetched {records:#record} of {topics:list}: "
            "a restart then would have read them again."
        ),
        advice=(
            "See whether its application stands still in a record (the library fetches ahead), or whether it commits "
            "at all."
        ),
        needs="`offset_commits` (at), `fetch_partitions` (high_watermark, lag), `connections` (ended_at)",
        cannot_tell="whether the application handled the records and did not commit, or did not handle them.",
        example="lab/no_poll_sarama",
        settled_at=CLIENT,
    ),
    "commits_fall_behind": Kind(
        cause="client",
        rule=(
            "The first record that a client had not committed in a partition had been in the log for 2 s or more. At "
            "four of five of its commits since this was last 1 s or less it had grown, at three at least, and the lag "
            "in records doubled over all. A record counts from when an answer to anybody showed that it was there. "
            "Partitions in which open transactions held readers back are left alone, and clients that were throttled "
            "meanwhile. So are those whose time was others' or unknown for half of it, those on "
            "hosts that the network loses packets to, and those whom answers may not have reached for half of it: "
            "segments were sent again as often as TCP's timers do in so long."
        ),
        headline="commits of client {client} are {behind:ms} behind on {place} and fall back further",
        sentence=(
            "{client:who} of group {group} falls behind on {partitions:#partition} of topic {topic}. From "
            "{since:clock} to {until:clock} the lag of its commits on partition {partition} grew from {before:n} to "
            "{after:n} records. The first record there that it had not committed had been in the log for {behind:ms} "
            "or more by then."
        ),
        advice=("Look at what the consumer does with its records, and when it commits, or add instances to its group."),
        needs=(
            "`offset_commits` (at, lag, high_watermark), `fetches` (client_id, throttle_ms, excess_ms), "
            "`fetch_partitions` (last_stable_offset)"
        ),
        cannot_tell="whether it reads further than it commits: see `growing_lag`.",
        example="rules/lagging",
        settled_at=CLIENT,
    ),
    "commit_per_record": Kind(
        cause="client",
        rule=(
            "A client of a group sent 100 commits or more, 20 a second or more, and they went on by 1.5 records a "
            "request or less."
        ),
        headline="client {client} of group {group} commits after each record",
        sentence=(
            "{client:who} of group {group} commits after each record: {requests:n} requests in {took:ms} ({rate:n} "
            "a second) for {records:#record} of {partitions:#partition}."
        ),
        advice=("Commit after a poll's records, or every few seconds (enable.auto.commit, auto.commit.interval.ms)."),
        needs="`offset_commits` (at, offset, exchange_id)",
        example="stories/slow_consumer",
    ),
}
"""By id."""
