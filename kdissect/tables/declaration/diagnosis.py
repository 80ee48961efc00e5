"""Declarations: findings, the quality of the capture, and problems."""

from __future__ import annotations

from kdissect.tables.declaration import model as m
from kdissect.tables.declaration.model import By, Column, Gathering, maybe_null, table

PROCESS_ADDRESS = Column("client_ip", m.TEXT, "Address of a client process; null for other subjects.")

TIME_LEDGER = table(
    "time_ledger",
    "subject (client process, broker, connection) x interval, without gaps from its first packet to its last one",
    Column("by", m.TEXT, "What the subject is: client, broker, connection."),
    Column("subject", m.TEXT, "Its name: a client id, a broker, a connection id."),
    PROCESS_ADDRESS,
    Column("at", m.TIME, "When the interval begins."),
    Column("until", m.TIME, "When it ends, where the subject's next one begins."),
    Column("owner", m.TEXT, "Whose the time is: own, idle, agreed, throttled, network, replication, transaction, "
           "broker, silent, gone, unknown; `time_budget` has what each means."),
    Column("evidence", m.TEXT, "How that was measured: a `network_kind`, transfer, remainder, stall, closed_window, "
           "follower_fetches, coordinator, throttle_time, max_wait, group, no_acknowledgement, no_answer, queued, "
           "no_connection, records_held, no_request, nothing_asked."),
    Column("connections", m.COUNT, "Connections whose exchanges the owner had meanwhile."),
    Column("exchanges", m.COUNT, "Exchanges that it had."),
    Column("first_exchange_id", m.TEXT, "The first of them; null where no exchange tells whose the time was."),
    made=By.LEDGER,
    key=(),
    on_request=True,
    when="at until",
)  # fmt: skip

TIME_BUDGET = table(
    "time_budget",
    "subject: a client process, broker, group or topic (`kdissect budget --every` has rows for stretches of time)",
    Column("by", m.TEXT, "What the subject is: client, broker, group, topic."),
    Column("subject", m.TEXT, "Its name."),
    PROCESS_ADDRESS,
    Column("at", m.TIME, "When the span begins: the first packet of its connections."),
    Column("until", m.TIME, "When the span ends: their last packet."),
    Column("wall_ms", m.MS, "How long the span is; the parts below add up to it, each instant counted once."),
    Column("agreed_ms", m.MS, "A long poll waited as it was asked to, or a member for its group."),
    Column("throttled_ms", m.MS, "A quota held a request back, or the client."),
    Column("broker_ms", m.MS, "A broker worked, or kept a request longer than that had agreed to."),
    Column("replication_ms", m.MS, "A Produce waited for followers."),
    Column("transaction_ms", m.MS, "A transaction coordinator had a request about a transaction."),
    Column("network_ms", m.MS, "Bytes were on their way."),
    Column("own_ms", m.MS, "The client's own: it had records and had not asked for more yet, or did not read an "
           "answer."),
    Column("idle_ms", m.MS, "Nothing was asked for."),
    Column("silent_ms", m.MS, "A client process stood still: neither data was asked for nor a heartbeat sent, for a "
           "second and three times as long as usual."),
    Column("gone_ms", m.MS, "None of its connections was open."),
    Column("unknown_ms", m.MS, "Nothing measures it: a request that was never answered, a broker's time from which no "
           "acknowledgement separates the network's, what lay behind its predecessor."),
    Column("exchanges", m.COUNT, "Exchanges that began in the span."),
    made=By.BUDGET,
    key=(),
    on_request=True,
    when="at until",
)  # fmt: skip

CLOCK_OFFSETS = table(
    "clock_offsets",
    "pair of captures that were given together and saw the same exchanges",
    Column("first", m.TEXT, "The capture nearer the client."),
    Column("second", m.TEXT, "The other one."),
    Column("connections", m.COUNT, "Connections that both saw."),
    Column("exchanges", m.COUNT, "Exchanges that both saw."),
    Column("offset_ms", m.MS, "Add it to the second's times to get the first's, when the first such exchange began."),
    Column("drift_ppm", m.REAL, "How offset_ms changes: microseconds a second."),
    Column("uncertainty_ms", m.MS, "Half of the least that both ways took together: a constant difference between "
           "them cannot be told from an offset."),
    Column("up_ms", m.MS, "Median of what requests took from the first to the second, clocks aligned."),
    Column("down_ms", m.MS, "Median of what responses took back."),
    made=By.LEARNED,
    key=(),
    on_request=True,
)  # fmt: skip

TOPIC_TRAFFIC = table(
    "topic_traffic",
    "client x topic x partition",
    Column("client_id", m.TEXT, "Client id of the request headers."),
    Column("client_ip", m.TEXT, "Address of the client."),
    Column("group_id", m.TEXT, "Consumer group of its connection."),
    Column("topic", m.TEXT, "Topic."),
    Column("topic_id", m.TEXT, "Topic id, where no message told its name."),
    Column("partition", m.CODE, "Partition."),
    Column("produced_records", m.COUNT, "Records in Produce requests; null where it wrote nothing."),
    Column("produced_bytes", m.COUNT, "Bytes of their batches on the wire."),
    Column("fetched_records", m.COUNT, "Records in Fetch responses; null where none came."),
    Column("fetched_bytes", m.COUNT, "Bytes of their batches on the wire."),
    Column("first_at", m.TIME, "Its first request about the partition."),
    Column("last_at", m.TIME, "Its last one."),
    Column("first_lag", m.COUNT, "High watermark - fetch offset, at the first answer that told it."),
    Column("last_lag", m.COUNT, "The same at the last one."),
    Column("max_lag", m.COUNT, "The most."),
    made=By.TRAFFIC,
    key=(),
    on_request=True,
    when="first_at last_at",
)

FINDINGS = table(
    "findings",
    "finding",
    Column("id", m.TEXT, "Kind of finding, a stable word."),
    Column("severity", m.TEXT, "high, medium, low, info: by the harm done to clients."),
    Column("cause", m.TEXT, "Whose: client, network, broker, follower, settings, security, capture, unknown."),
    Column("headline", m.TEXT, "The finding in a few words: subject, verb, how much or how long."),
    Column("text", m.TEXT, "The finding in a sentence."),
    Column("advice", m.TEXT, "What to look at or change; null where there is nothing to do."),
    Column("first_at", m.TIME, "When it began; null where that is not known."),
    Column("last_at", m.TIME, "When it was last seen."),
    Column("broker", m.TEXT, "Broker that it is about; null for none or several."),
    Column("client_id", m.TEXT, "Client id that it is about; null for none or several."),
    Column("group_id", m.TEXT, "Group that it is about."),
    Column("topic", m.TEXT, "Topic that it is about."),
    Column("partition", m.CODE, "Partition that it is about."),
    Column("transactional_id", m.TEXT, "Transactional id that it is about."),
    Column("certainty", m.TEXT, "How sure the cause is: sure (the evidence proves it), likely; null where it is "
           "unknown."),
    Column("next_capture", m.TEXT, "A command to paste: the capture that would settle the cause, and where; null where "
           "the cause is sure, where nothing is wrong, or no capture would."),
    Column("incident", m.COUNT, "The same number for what belongs together, in order of time; null where nothing "
           "happened."),
    Column("table", m.TEXT, "Table that shows the evidence."),
    Column("filter", m.TEXT, "Expression for `--where` which selects it."),
    Column("count", m.COUNT, "Rows of evidence."),
    Column("first_exchange_id", m.TEXT, "First exchange of the evidence; null where it is not about exchanges."),
    made=By.FINDINGS,
    key=(),
    shown="severity incident first_at text count first_exchange_id",
)  # fmt: skip

CAPTURE_QUALITY = table(
    "capture_quality",
    "capture file x measure",
    m.CAPTURE,
    Column("file", m.TEXT, "File of the capture; null for the capture as a whole."),
    Column("measure", m.TEXT, "What is measured: packets, packets_dropped, missing_bytes, ..."),
    Column("value", m.REAL, "The figure."),
    Column("text", m.TEXT, "What it means, in words; or the value where it is no number."),
    made=By.LEARNED,
    key=(),
    shown="measure value text file",
)

PROBLEMS = table(
    "problems",
    "anything not read or not right",
    maybe_null(m.CAPTURE),
    maybe_null(m.CONNECTION_ID),
    maybe_null(m.EXCHANGE_ID),
    Column("at", m.TIME, "When."),
    Column("file", m.TEXT, "File that `frame` counts in."),
    Column("frame", m.COUNT, "Number of the packet, as Wireshark counts."),
    Column("kind", m.TEXT, "Kind of problem, such as missing_bytes, resynchronised, body_misfit, unknown_version, "
           "tls."),
    Column("where", m.TEXT, "Place: direction, field path, schema line."),
    Column("detail", m.TEXT, "What is wrong, in words."),
    Column("bytes", m.COUNT, "Bytes affected; null where that does not apply."),
    made=By.NOTED,
    when="at",
    key=("at", "exchange_id", "connection_id", "kind"),
    reads=frozenset([Gathering.RECORDS]),
    shown="kind detail bytes frame exchange_id where at",
)  # fmt: skip
