"""Findings about errors: one for each error code and the harm that it does."""

from __future__ import annotations

from kdissect.analysis.findings.catalogue.kind import Kind

HEADLINE = "{error}: {answers:#answer} to {clients:list2}[ about {topics:?topic|topics} {topics:list2}]"
SENTENCE = (
    "{error}: {answers:#answer} ({asked:list asker})[, at {at:clock}][, from {since:clock} on for {took:ms}]"
    "[; Fetch asked for {fetched:list}][; Produce was for {produced:list}][; no answer describes "
    "{undescribed:?topic|topics} {undescribed:list}]."
)
PARTS = {"asker": "{answers:n} [{api}|unknown] of [{client}|a client without an id]"}
NEEDS = (
    "`exchanges` (error, client_id), `fetch_partitions` (error_code, topic), `producers` and `record_batches` (topic)"
)
"""All errors have the same texts."""
OF_TOPICS = SENTENCE.removesuffix(".") + (
    "[?existed:; clients had {topics:?its id|their ids}: deleted since, or not known there yet]."
)

KINDS = {
    "passing_error": Kind(
        cause="unknown",
        rule=(
            "Errors that clients meet as they start, move or wait their turn (MEMBER_ID_REQUIRED, "
            "COORDINATOR_NOT_AVAILABLE, CONCURRENT_TRANSACTIONS, ...). Low when a client "
            "got one again and again for 30 s, within 5 s each time."
        ),
        headline=HEADLINE,
        sentence=SENTENCE,
        parts=PARTS,
        needs=NEEDS,
        example="base",
    ),
    "stale_leader": Kind(
        cause="unknown",
        rule=(
            "NOT_LEADER_OR_FOLLOWER, FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH. Info where only brokers got it, and "
            "requests whose client id was cut off."
        ),
        headline=HEADLINE,
        sentence=SENTENCE,
        parts=PARTS,
        advice="Nothing, if it ends: clients ask for metadata and go on; else see which brokers come and go.",
        needs=NEEDS,
        cannot_tell="why the leader moved.",
        example="stories/leader_move",
    ),
    "missing_topic": Kind(
        cause="client",
        other_causes=("unknown",),
        rule=(
            "UNKNOWN_TOPIC_OR_PARTITION and UNKNOWN_TOPIC_ID. Info for less than ten answers that no Produce got. The "
            "cause is unknown where a Fetch named each of the topics by an id that answers told."
        ),
        headline=HEADLINE,
        sentence=OF_TOPICS,
        parts=PARTS,
        advice=(
            "See whether the topic was deleted or its name is wrong; or let brokers create it "
            "(auto.create.topics.enable)."
        ),
        needs=f"{NEEDS}, `topics` (partitions, source)",
        cannot_tell=(
            "whether the topic was deleted or never there. Of APIs other than Fetch and Produce it names the topics "
            "that Metadata mentions and no answer describes."
        ),
        example="k4_slow_and_throttled",
    ),
    "member_unknown": Kind(
        cause="client",
        rule=(
            "UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION, FENCED_INSTANCE_ID and those of KIP-848: the group has gone on "
            "without the member. Info of LeaveGroup alone."
        ),
        headline=HEADLINE,
        sentence=SENTENCE,
        parts=PARTS,
        advice="See whether its heartbeats or polls stopped: session.timeout.ms, max.poll.interval.ms.",
        needs=NEEDS,
        cannot_tell="why the member was late.",
        example="rules/suspended",
    ),
    "offset_out_of_range": Kind(
        cause="client",
        rule=("OFFSET_OUT_OF_RANGE of a Fetch: records that the client wanted are gone, or the log was cut back."),
        headline=HEADLINE,
        sentence=SENTENCE,
        parts=PARTS,
        advice=(
            "See what auto.offset.reset does then, and whether retention (retention.ms, retention.bytes) is "
            "shorter than the consumer's lag."
        ),
        needs=NEEDS,
        cannot_tell="which of the two.",
        example="k4_slow_and_throttled",
    ),
    "retriable_error": Kind(
        cause="broker",
        rule=(
            "Errors after which clients try again and that do not belong to starting or moving "
            "(NOT_ENOUGH_REPLICAS, REQUEST_TIMED_OUT, KAFKA_STORAGE_ERROR, CORRUPT_MESSAGE, ...)."
        ),
        headline=HEADLINE,
        sentence=SENTENCE,
        parts=PARTS,
        advice="Look at the brokers and replicas that the answers come from.",
        needs=NEEDS,
        cannot_tell="whether the client's next attempt got through.",
        example="raw_errors",
    ),
    "records_refused": Kind(
        cause="client",
        rule="A Produce was answered with an error that clients do not retry (MESSAGE_TOO_LARGE, ...).",
        headline=HEADLINE,
        sentence=SENTENCE,
        parts=PARTS,
        advice=(
            "These records are lost unless the application handles the error; the error's name says what it must "
            "change."
        ),
        needs=NEEDS,
        cannot_tell="what the application did next. A producer may split a batch that is too large.",
        example="k4_slow_and_throttled",
    ),
    "request_failed": Kind(
        cause="client",
        rule="Any other error of an API by which applications read and write.",
        headline=HEADLINE,
        sentence=SENTENCE,
        parts=PARTS,
        needs=NEEDS,
        cannot_tell="what it means for the application.",
        example="downconv_282",
    ),
    "request_refused": Kind(
        cause="client",
        rule="Any other error of an API that people, tools and brokers ask.",
        headline=HEADLINE,
        sentence=SENTENCE,
        parts=PARTS,
        needs=NEEDS,
        cannot_tell="whether anybody minded.",
        example="k4_admin_sweep",
    ),
    "unsupported_version": Kind(
        cause="settings",
        rule=(
            "Answers with UNSUPPORTED_VERSION. Info of ApiVersions: newer clients ask older brokers so by design. Or "
            "requests without an answer whose connection the broker closed first, of a version that its answers to "
            "ApiVersions, of anybody, leave out (Produce below 3 of Kafka 4, too). These are high."
        ),
        headline={
            "one": "{client:who} asked {asked:times} for a version of [{api}|an unknown API] that the broker lacks",
            "many": (
                "{clients:#client} ({clients:list}) asked {asked:times} for a version of [{api}|an unknown API] "
                "that the broker lacks"
            ),
            "closed": (
                "[{clients:list}|a client without an id] asked {requests:times} for a version of {api} that the broker "
                "lacks"
            ),
        },
        sentence={
            "one": (
                "{client:who} asked {asked:times} for a version of [{api}|an unknown API] that the broker does not "
                "support."
            ),
            "many": (
                "{clients:#client} ({clients:list}) asked {asked:times} for a version of [{api}|an unknown API] "
                "that the broker does not support."
            ),
            "closed": (
                "{brokers:?Broker|Brokers} {brokers:list} closed the connection upon {requests:#request} of "
                "[{clients:list}|a client without an id] for {api} v{version}, without an answer. Versions {least} to "
                "{most} are supported there. The client's library is too old or too new for that, or its version was "
                "set by hand."
            ),
        },
        advice=(
            "Nothing, if it goes on with another version. Else update that client's library, or let it ask the broker "
            "for its versions (api_version, api.version.request, broker.version.fallback)."
        ),
        needs="`exchanges` (error, api_version, status), `api_versions`, `connections` (closed_by)",
        example="k4_list_offsets_raw",
    ),
}
"""By id."""
