"""Findings about fetch sessions."""

from __future__ import annotations

from kdissect.analysis.findings.catalogue.kind import Kind

KINDS = {
    "sessions_never_reused": Kind(
        cause="client",
        rule=(
            "Ten or more fetch sessions opened on a broker, and neither closed nor replaced, by a client that sent "
            "no incremental fetch."
        ),
        headline="client {client} never reuses its fetch sessions on broker {broker}",
        sentence=(
            "{client:who} never reuses its fetch sessions: it opened {opened:#session} on broker {broker}, sent no "
            "incremental fetch and closed or replaced {closed:n}. Each that is left takes a slot that others may "
            "lose."
        ),
        advice="Let it use incremental fetches: most clients of this kind send epoch 0 at every poll.",
        needs="`fetches` (session_outcome, request_kind)",
        example="rules/sessions",
    ),
    "sessions_left_open": Kind(
        cause="client",
        rule="A client left 20 or more sessions open on a broker, half of those it opened.",
        headline="client {client} opens fetch sessions faster than it closes them",
        sentence=(
            "{client:who} opens fetch sessions faster than it closes them: {opened:#session} opened on broker "
            "{broker}, {closed:n} closed or replaced."
        ),
        advice="See that the client closes its sessions, or reconnects less.",
        needs="`fetches` (session_outcome, request_kind)",
        example="rules/sessions",
    ),
    "session_evictor": Kind(
        cause="client",
        rule="Its new sessions account for others' lost ones (one whole session at least).",
        headline="sessions of client {client} push out those of others on broker {broker}",
        sentence=(
            "{client:who} is number {rank} among clients whose new sessions push out those of others. Its "
            "{created:#session} on broker {broker} account for about {evictions:n} of {victims:#session} that "
            "other clients lost there."
        ),
        advice="Raise max.incremental.fetch.session.cache.slots, or let this client open fewer sessions.",
        needs="`fetches` (session_outcome)",
        cannot_tell="sessions of brokers or times that are not in the capture.",
        example="k4_session_eviction",
        starts=True,
    ),
    "sessions_lost": Kind(
        cause="settings",
        rule="Answers with FETCH_SESSION_ID_NOT_FOUND.",
        headline="broker {broker} did not know fetch sessions {answers:times}",
        sentence=(
            "Broker {broker} answered {answers:times} that it does not know a client's fetch session (any more)."
        ),
        advice="`kdissect sessions` shows who needs how many slots (max.incremental.fetch.session.cache.slots).",
        needs="`fetches` (session_outcome)",
        cannot_tell="whether the session was evicted, or never known (a restarted broker, a wrong id).",
        example="k4_session_eviction",
    ),
    "sessions_refused": Kind(
        cause="settings",
        rule="Three or more requests for a session that were answered with session id 0.",
        headline="broker {broker} refused {requests:#Fetch|Fetches} a session",
        sentence=(
            "Broker {broker} answered {requests:#request} for a fetch session without one. Its cache has no slots "
            "for sessions, or sessions that it may not evict yet take them all. Such fetches name every partition "
            "each time."
        ),
        advice=(
            "Raise max.incremental.fetch.session.cache.slots where it matters (followers and consumers of many "
            "partitions)."
        ),
        needs="`fetches` (session_outcome)",
        cannot_tell="whether the cache has no slots at all, or none free.",
        example="k4_session_eviction",
    ),
    "session_slots": Kind(
        cause="settings",
        rule="As many sessions at once as four fifths of Kafka's default slots, on a broker or in a shard of one.",
        headline={
            "broker": "broker {broker} needs more slots for fetch sessions",
            "shards": "{shards:#shard} of broker {broker} {shards:?needs|need} more slots for fetch sessions",
        },
        sentence={
            "broker": (
                "Clients held up to {sessions:n} fetch sessions at once on broker {broker}. Kafka's default is "
                "{slots:n} slots a broker (max.incremental.fetch.session.cache.slots)."
            ),
            "shards": (
                "Clients held up to {sessions:n} fetch sessions at once in one shard of broker {broker}, of "
                "{shards:?shard|shards} {shards:all}. Kafka's default is {slots:n} slots a shard "
                "(max.incremental.fetch.session.cache.slots is for all eight)."
            ),
        },
        advice="Raise max.incremental.fetch.session.cache.slots.",
        needs="`fetch_sessions` (opened_at, closed_at)",
        cannot_tell="how many slots this broker really has.",
        example="rules/slots",
    ),
    "session_epoch_errors": Kind(
        cause="client",
        rule="Answers with INVALID_FETCH_SESSION_EPOCH.",
        headline="{clients:list client} used a wrong session epoch {answers:times}",
        sentence=(
            "{clients:list client} used a wrong session epoch {answers:times}[, {after:n} of them right after a "
            "reconnect (a session goes on where it was)]."
        ),
        parts={
            "client": "{it:who}",
        },
        needs="`fetches` (session_outcome)",
        example="k4_fetch_sessions_raw",
    ),
    "session_savings": Kind(
        cause="unknown",
        rule="A client used incremental fetches.",
        headline="fetch sessions made requests smaller",
        sentence=(
            "{sessions:#fetch session} saved clients from sending {saved:n} bytes of requests; {sent:n} bytes were "
            "sent."
        ),
        needs="`fetch_sessions` (full_request_bytes_avoided, request_bytes)",
        example="base",
    ),
}
"""By id."""
