"""Declarations: findings, the quality of the capture, and problems."""

from __future__ import annotations

from kdissect.tables.declaration.model import (
    CAPTURE,
    CODE,
    CONNECTION_ID,
    COUNT,
    EXCHANGE_ID,
    MS,
    REAL,
    TEXT,
    TIME,
    By,
    Column,
    Gathering,
    table,
)

TIME_BUDGET = table(
    "time_budget",
    "subject: a client, broker, group or topic (`kdissect budget --every` has rows for stretches of time)",
    Column("by", TEXT, "What the subject is: client, broker, group, topic."),
    Column("subject", TEXT, "Its name."),
    Column("at", TIME, "When the span begins: its first request."),
    Column("until", TIME, "When the span ends: its last answer."),
    Column("wall_ms", MS, "How long the span is; the eight parts below add up to it, each moment counted once."),
    Column("agreed_ms", MS, "A long poll waited as it was asked to, or a member for its group."),
    Column("throttled_ms", MS, "A quota held a request back."),
    Column("broker_ms", MS, "A broker worked, or kept a request longer than that had agreed to."),
    Column("replication_ms", MS, "A Produce waited for followers."),
    Column("network_ms", MS, "Bytes were on their way."),
    Column(
        "own_ms",
        MS,
        "The client's own: an answer with records was there, and it had not asked for more yet, or its process stood "
        "still.",
    ),
    Column("idle_ms", MS, "Nothing was asked for."),
    Column("unknown_ms", MS, "Requests that were never answered, and what lay behind its predecessor."),
    Column("exchanges", COUNT, "Exchanges that began in the span."),
    made=By.BUDGET,
    key=(),
    on_request=True,
    when="at until",
)

CLOCK_OFFSETS = table(
    "clock_offsets",
    "pair of captures that were given together and saw the same exchanges",
    Column("first", TEXT, "The capture nearer the client."),
    Column("second", TEXT, "The other one."),
    Column("connections", COUNT, "Connections that both saw."),
    Column("exchanges", COUNT, "Exchanges that both saw."),
    Column("offset_ms", MS, "Add it to the second's times to get the first's, when the first such exchange began."),
    Column("drift_ppm", REAL, "How offset_ms changes: microseconds a second."),
    Column(
        "uncertainty_ms",
        MS,
        "Half of the least that both ways took together: a constant difference between them cannot be told from an "
        "offset.",
    ),
    Column("up_ms", MS, "Median of what requests took from the first to the second, clocks aligned."),
    Column("down_ms", MS, "Median of what responses took back."),
    made=By.LEARNED,
    key=(),
    on_request=True,
)

TOPIC_TRAFFIC = table(
    "topic_traffic",
    "client x topic x partition",
    Column("client_id", TEXT, "Client id of the request headers."),
    Column("client_ip", TEXT, "Address of the client."),
    Column("group_id", TEXT, "Consumer group of its connection."),
    Column("topic", TEXT, "Topic."),
    Column("topic_id", TEXT, "Topic id, where no message told its name."),
    Column("partition", CODE, "Partition."),
    Column("produced_records", COUNT, "Records in Produce requests; null where it wrote nothing."),
    Column("produced_bytes", COUNT, "Bytes of their batches on the wire."),
    Column("fetched_records", COUNT, "Records in Fetch responses; null where none came."),
    Column("fetched_bytes", COUNT, "Bytes of their batches on the wire."),
    Column("first_at", TIME, "Its first request about the partition."),
    Column("last_at", TIME, "Its last one."),
    Column("first_lag", COUNT, "High watermark - fetch offset, at the first answer that told it."),
    Column("last_lag", COUNT, "The same at the last one."),
    Column("max_lag", COUNT, "The most."),
    made=By.TRAFFIC,
    key=(),
    on_request=True,
    when="first_at last_at",
)

FINDINGS = table(
    "findings",
    "finding",
    Column("id", TEXT, "Kind of finding, a stable word."),
    Column("severity", TEXT, "high, medium, low, info: by the harm done to clients."),
    Column("cause", TEXT, "Whose: client, network, broker, follower, settings, security, capture, unknown."),
    Column("text", TEXT, "The finding in a sentence."),
    Column("advice", TEXT, "What to look at or change; null where there is nothing to do."),
    Column("first_at", TIME, "When it began; null where that is not known."),
    Column("last_at", TIME, "When it was last seen."),
    Column("broker", TEXT, "Broker that it is about; null for none or several."),
    Column("client_id", TEXT, "Client id that it is about; null for none or several."),
    Column("group_id", TEXT, "Group that it is about."),
    Column("topic", TEXT, "Topic that it is about."),
    Column("partition", CODE, "Partition that it is about."),
    Column("transactional_id", TEXT, "Transactional id that it is about."),
    Column(
        "incident", COUNT, "The same number for what belongs together, in order of time; null where nothing happened."
    ),
    Column("table", TEXT, "Table that shows the evidence."),
    Column("filter", TEXT, "Expression for `--where` which selects it."),
    Column("count", COUNT, "Rows of evidence."),
    Column("first_exchange_id", TEXT, "First exchange of the evidence; null where it is not about exchanges."),
    made=By.FINDINGS,
    key=(),
    shown="severity incident first_at text count first_exchange_id",
)

CAPTURE_QUALITY = table(
    "capture_quality",
    "capture file x measure",
    CAPTURE,
    Column("file", TEXT, "File of the capture; null for the capture as a whole."),
    Column("measure", TEXT, "What is measured: packets, packets_dropped, missing_bytes, ..."),
    Column("value", REAL, "The figure."),
    Column("text", TEXT, "What it means, in words; or the value where it is no number."),
    made=By.LEARNED,
    key=(),
    shown="measure value text file",
)

PROBLEMS = table(
    "problems",
    "anything not read or not right",
    CAPTURE,
    CONNECTION_ID,
    EXCHANGE_ID,
    Column("at", TIME, "When."),
    Column("file", TEXT, "File that `frame` counts in."),
    Column("frame", COUNT, "Number of the packet, as Wireshark counts."),
    Column("kind", TEXT, "Kind of problem, such as missing_bytes, resynchronised, body_misfit, unknown_version, tls."),
    Column("where", TEXT, "Place: direction, field path, schema line."),
    Column("detail", TEXT, "What is wrong, in words."),
    Column("bytes", COUNT, "Bytes affected; null where that does not apply."),
    made=By.NOTED,
    when="at",
    key=("at", "exchange_id", "connection_id", "kind"),
    reads=frozenset([Gathering.RECORDS]),
    shown="kind detail bytes frame exchange_id where at",
)
