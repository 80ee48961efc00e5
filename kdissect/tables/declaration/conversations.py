"""Declarations: connections and exchanges."""

from __future__ import annotations

from kdissect.tables.declaration import model as m
from kdissect.tables.declaration.model import By, Column, Gathering, table

CONNECTIONS = table(
    "connections",
    "TCP connection (a reused 4-tuple is a new one)",
    m.CONNECTION_ID,
    m.CAPTURE,
    Column("client_ip", m.TEXT, "Address of the side that sends requests (the one that opened it, where nothing else "
           "tells).", never_null=True),
    Column("client_port", m.CODE, "Its TCP port.", never_null=True),
    Column("broker_ip", m.TEXT, "Address of the side that answers.", never_null=True),
    Column("broker_port", m.CODE, "Its TCP port.", never_null=True),
    m.BROKER,
    m.CLIENT_NAME,
    m.BROKER_NAME,
    m.COMMUNITY_ID,
    Column("started_at", m.TIME, "Time of the first packet in the capture."),
    Column("ended_at", m.TIME, "Time of the last packet in the capture."),
    Column("start_seen", m.FLAG, "The opening SYN was captured; of a connection whose client was not, the broker's."),
    Column("end_reason", m.TEXT, "How it ended: fin, rst, reused (its 4-tuple was used again), idle (given up after "
           "a long silence), open (when the capture ended)."),
    Column("closed_by", m.TEXT, "Which end sent the first FIN or RST: client, broker; null where none was captured, or "
           "another one may have come before it that was not."),
    Column("is_kafka", m.FLAG, "Kafka was recognised by content."),
    Column("protocol", m.TEXT, "What it speaks: `kafka`, another protocol's name, or null when unknown."),
    Column("client_id", m.TEXT, "First client id seen in a request header."),
    Column("client_software_name", m.TEXT, "ClientSoftwareName of the first ApiVersions request (v3 and later)."),
    Column("client_software_version", m.TEXT, "ClientSoftwareVersion of that request."),
    Column("group_id", m.TEXT, "Consumer group: the one its own requests name, else the one named by requests of the "
           "same client address and client id; null when there are several."),
    Column("sasl_mechanism", m.TEXT, "Mechanism of the first SaslHandshake request, or of bare tokens."),
    Column("principal", m.TEXT, "User name, where the mechanism tells it openly (PLAIN, SCRAM). Never a credential."),
    Column("tls", m.TEXT, "TLS version when the connection is encrypted; `expected` where a client speaks plaintext "
           "to a port for TLS; else null."),
    Column("sni", m.TEXT, "Server name that the TLS client asked for."),
    Column("packets", m.COUNT, "Packets, both directions, each once: `duplicated_packets` has their copies."),
    Column("bytes", m.COUNT, "TCP payload bytes on the wire, both directions, retransmissions included."),
    Column("retransmitted_bytes", m.COUNT, "Payload bytes that had been captured before; not those of duplicates."),
    Column("duplicated_packets", m.COUNT, "Packets captured more than once: on several interfaces, in a tunnel and "
           "out of it."),
    Column("out_of_order_packets", m.COUNT, "Packets that arrived behind a hole."),
    Column("missing_bytes", m.COUNT, "Stream bytes never captured, both directions."),
    Column("zero_window_ms", m.MS, "Time with a receive window of zero, both directions."),
    Column("rtt_ms", m.MS, "Round trip between the capture point and the broker: the median over answered exchanges "
           "of what was in force; null where nothing tells it."),
    Column("rtt_min_ms", m.MS, "The smallest that was in force."),
    Column("rtt_max_ms", m.MS, "The largest that was in force."),
    Column("client_rtt_ms", m.MS, "Round trip between the capture point and the client, the last in force."),
    Column("rtt_kind", m.TEXT, "How the last one to the broker was found: handshake, ack (of acknowledgements), "
           "bound (at most), proven (it rose: acknowledgements came later than any host delays them)."),
    Column("lost_segments", m.COUNT, "Segments sent again, both directions."),
    Column("sights", m.PLACES, "The other places that hold it: captures given together, or interfaces of one pcapng "
           "(interface: its name or number; null where a capture counts as one place), each with the id that the "
           "connection has there; an empty list for none."),
    Column("exchanges", m.COUNT, "Rows of `exchanges` of this connection."),
    Column("problems", m.COUNT, "Rows of `problems` of this connection.", reads=frozenset([Gathering.RECORDS])),
    made=By.END,
    when="started_at ended_at",
    key=("started_at", "connection_id"),
    reads=frozenset([Gathering.CLIENTS]),
    shown="connection_id started_at client_id client_ip client_port broker end_reason exchanges bytes "
    "retransmitted_bytes rtt_ms missing_bytes zero_window_ms client_software_name client_software_version "
    "problems",
)  # fmt: skip

EXCHANGES = table(
    "exchanges",
    "request with its response",
    m.EXCHANGE_ID,
    m.CONNECTION_ID,
    m.CAPTURE,
    Column("client_ip", m.TEXT, "Address of the side that sends requests.", never_null=True),
    Column("client_port", m.CODE, "Its TCP port.", never_null=True),
    Column("broker_ip", m.TEXT, "Address of the side that answers.", never_null=True),
    Column("broker_port", m.CODE, "Its TCP port.", never_null=True),
    m.BROKER,
    m.CLIENT_NAME,
    m.BROKER_NAME,
    m.COMMUNITY_ID,
    Column("api_key", m.CODE, "API key of the request header; null for a response whose API is unknown."),
    Column("api", m.TEXT, "Name of the API, `key N` when unknown."),
    Column("api_version", m.CODE, "API version of the request header."),
    Column("correlation_id", m.CODE, "Correlation id of the headers (ids repeat: `exchange_id` does not)."),
    Column("client_id", m.TEXT, "Client id of the request header."),
    Column("status", m.TEXT, "First that applies: orphan, partial, undecodable, error, ok, no_response, one_way, "
           "unanswered, pending."),
    Column("error_code", m.CODE, "Kafka's error code: the response's top-level one where that is set, else its first "
           "in wire order, else 0; null when the response was not decoded."),
    Column("error", m.TEXT, "Name of the error; null for none."),
    Column("error_count", m.CODE, "How many ...ErrorCode fields of the response are not 0; null when it was not "
           "decoded."),
    Column("request_first_at", m.TIME, "When the first byte of the request arrived (first arrivals; retransmissions "
           "move nothing)."),
    Column("request_last_at", m.TIME, "Latest first arrival among the bytes of the request; null if any never "
           "arrived."),
    Column("response_first_at", m.TIME, "When the first byte of the response arrived."),
    Column("response_last_at", m.TIME, "Latest first arrival among the bytes of the response; null if any never "
           "arrived."),
    Column("latency_ms", m.MS, "Response's last byte - request's first byte."),
    Column("request_transfer_ms", m.MS, "Request's last byte - its first byte (until the response's first where that "
           "came before). With network_ms, queued_ms, broker_ms and response_transfer_ms it adds up to latency_ms."),
    Column("network_ms", m.MS, "What the network between the capture point and the broker took of the time from the "
           "request's last byte to the response's first: the round trip at that moment, and what was sent again; "
           "null where nothing in the capture proves it (broker_ms is an upper bound then)."),
    Column("queued_ms", m.MS, "How long the request lay behind its predecessor at the broker: max(0, last byte of "
           "the response before - network_ms - this request's last byte); 0 for the first, null without a response."),
    Column("broker_ms", m.MS, "Response's first byte - request's last byte - network_ms - queued_ms: the broker's "
           "own work, and what it waited for. An upper bound where network_kind is null."),
    Column("response_transfer_ms", m.MS, "Response's last byte - its first byte."),
    Column("replication_ms", m.MS, "Part of broker_ms in which a Produce waited for followers, as in `produces`; null "
           "where the capture cannot tell.", by=By.EXCHANGE_HOLDS),
    Column("throttled_ms", m.MS, "Part of broker_ms in which a quota muted the connection (KIP-219): until the end of "
           "the window that the response before this request began.", by=By.EXCHANGE_HOLDS),
    Column("agreed_ms", m.MS, "Part of broker_ms that the request agreed to: a Fetch or ShareFetch waits max_wait_ms "
           "at most, unless there was nothing to wait for; JoinGroup and SyncGroup wait for their group. Null for "
           "other APIs.", by=By.EXCHANGE_HOLDS),
    Column("request_resent_ms", m.MS, "Part of network_ms: from the request's last byte to the last copy of its "
           "bytes that was needed; null where its acknowledgement was not seen, or where nothing tells whether a copy "
           "was needed."),
    Column("response_resent_ms", m.MS, "Part of response_transfer_ms: for how long a hole in the response stood open "
           "that its last bytes filled."),
    Column("think_ms", m.MS, "The client's own time: from the last byte of the connection's previous response to "
           "this request's first byte, less the client's round trip; null where other requests were in flight."),
    Column("network_kind", m.TEXT, "How network_ms was found: handshake, ack (of acknowledgements), bound (at most), "
           "proven (acknowledgements later than any host delays them), resent, silence (nothing was acknowledged for "
           "longer), both_ends (measured: captures of both ends were given together), timestamps (the way from the "
           "broker is longer than at its least, by TCP timestamps); null where nothing proves anything."),
    Column("network_up_ms", m.MS, "What the request took from one capture point to the other, clocks aligned, where "
           "captures of both ends were given together; else null."),
    Column("network_down_ms", m.MS, "The same of the response, on its way back; where network_kind is timestamps, what "
           "it took beyond the least."),
    Column("throttle_ms", m.MS, "ThrottleTimeMs of the response; null where the version has none."),
    Column("hold", m.TEXT, "Why the broker answered when it did: data, timeout, throttled, error, immediate, "
           "replication (Produce, measured), rebalance (JoinGroup, SyncGroup), unknown; null for APIs that wait for "
           "nothing.", by=By.EXCHANGE_HOLDS),
    Column("abandoned", m.FLAG, "The client had closed (FIN or RST) before the response's first byte; null without a "
           "response."),
    Column("request_bytes", m.COUNT, "Size of the request with its 4-byte length prefix."),
    Column("response_bytes", m.COUNT, "Size of the response with its 4-byte length prefix."),
    Column("in_flight", m.CODE, "Requests of the connection without an answer when this one was complete, itself "
           "included."),
    Column("request_file", m.TEXT, "File that `request_frame` counts in."),
    Column("request_frame", m.COUNT, "Number, as Wireshark counts, of the packet which completed the request."),
    Column("response_file", m.TEXT, "File that `response_frame` counts in."),
    Column("response_frame", m.COUNT, "Number, as Wireshark counts, of the packet which completed the response."),
    Column("api_inferred", m.FLAG, "API and version were inferred from the response, its request was not captured."),
    Column("decoded", m.FLAG, "Every captured body was read by the layout of its version."),
    made=By.BLOCK,
    when="request_first_at response_first_at response_last_at",
    shown="exchange_id request_first_at api latency_ms hold error client_id response_bytes broker status "
    "request_bytes broker_ms queued_ms throttle_ms request_resent_ms response_resent_ms api_version request_frame "
    "response_frame",
)  # fmt: skip
