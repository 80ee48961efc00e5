"""Declarations: connections and exchanges."""

from __future__ import annotations

from kdissect.tables.declaration.model import (
    BROKER,
    CAPTURE,
    CODE,
    CONNECTION_ID,
    COUNT,
    EXCHANGE_ID,
    FLAG,
    MS,
    TEXT,
    TIME,
    table,
)

CONNECTIONS = table(
    "connections",
    "TCP connection (a reused 4-tuple is a new one)",
    CONNECTION_ID,
    CAPTURE,
    ("client_ip", TEXT, "Address of the side that sends requests (the one that opened it, where nothing else tells)."),
    ("client_port", CODE, "Its TCP port."),
    ("broker_ip", TEXT, "Address of the side that answers."),
    ("broker_port", CODE, "Its TCP port."),
    BROKER,
    ("started_at", TIME, "Time of the first packet in the capture."),
    ("ended_at", TIME, "Time of the last packet in the capture."),
    ("start_seen", FLAG, "The opening SYN was captured."),
    (
        "end_reason",
        TEXT,
        "How it ended: fin, rst, reused (its 4-tuple was used again), idle (given up after a long silence), "
        "open (when the "
        "capture ended).",
    ),
    ("is_kafka", FLAG, "Kafka was recognised by content."),
    ("protocol", TEXT, "What it speaks: `kafka`, another protocol's name, or null when unknown."),
    ("client_id", TEXT, "First client id seen in a request header."),
    ("client_software_name", TEXT, "ClientSoftwareName of the first ApiVersions request (v3 and later)."),
    ("client_software_version", TEXT, "ClientSoftwareVersion of that request."),
    (
        "group_id",
        TEXT,
        "Consumer group: the one its own requests name, else the one named by requests of the same client "
        "address and client "
        "id; null when there are several.",
    ),
    ("sasl_mechanism", TEXT, "Mechanism of the first SaslHandshake request, or of bare tokens."),
    ("principal", TEXT, "User name, where the mechanism tells it openly (PLAIN, SCRAM). Never a credential."),
    (
        "tls",
        TEXT,
        "TLS version when the connection is encrypted; `expected` where a client speaks plaintext to a port for TLS; "
        "else null.",
    ),
    ("sni", TEXT, "Server name that the TLS client asked for."),
    ("packets", COUNT, "Packets, both directions, duplicates included."),
    ("bytes", COUNT, "TCP payload bytes on the wire, both directions, retransmissions included."),
    ("retransmitted_bytes", COUNT, "Payload bytes that had been captured before; not those of duplicates."),
    ("duplicated_packets", COUNT, "Packets captured more than once: on several interfaces, in a tunnel and out of it."),
    ("out_of_order_packets", COUNT, "Packets that arrived behind a hole."),
    ("missing_bytes", COUNT, "Stream bytes never captured, both directions."),
    ("zero_window_ms", MS, "Time with a receive window of zero, both directions."),
    ("rtt_ms", MS, "Network round trip, from the handshake or from acknowledgements; null where neither was seen."),
    ("exchanges", COUNT, "Rows of `exchanges` of this connection."),
    ("problems", COUNT, "Rows of `problems` of this connection."),
)

EXCHANGES = table(
    "exchanges",
    "request with its response",
    EXCHANGE_ID,
    CONNECTION_ID,
    CAPTURE,
    ("client_ip", TEXT, "Address of the side that sends requests."),
    ("client_port", CODE, "Its TCP port."),
    ("broker_ip", TEXT, "Address of the side that answers."),
    ("broker_port", CODE, "Its TCP port."),
    BROKER,
    ("api_key", CODE, "API key of the request header; null for a response whose API is unknown."),
    ("api", TEXT, "Name of the API, `key N` when unknown."),
    ("api_version", CODE, "API version of the request header."),
    ("correlation_id", CODE, "Correlation id of the headers (ids repeat: `exchange_id` does not)."),
    ("client_id", TEXT, "Client id of the request header."),
    (
        "status",
        TEXT,
        "First that applies: orphan, partial, undecodable, error, ok, no_response, one_way, unanswered, pending.",
    ),
    (
        "error_code",
        CODE,
        "Kafka's error code: the response's top-level one where that is set, else its first in wire order, "
        "else 0; null when "
        "the response was not decoded.",
    ),
    ("error", TEXT, "Name of the error; null for none."),
    ("error_count", CODE, "How many ...ErrorCode fields of the response are not 0; null when it was not decoded."),
    (
        "request_first_at",
        TIME,
        "When the first byte of the request arrived (first arrivals; retransmissions move nothing).",
    ),
    ("request_last_at", TIME, "Latest first arrival among the bytes of the request; null if any never arrived."),
    ("response_first_at", TIME, "When the first byte of the response arrived."),
    ("response_last_at", TIME, "Latest first arrival among the bytes of the response; null if any never arrived."),
    ("latency_ms", MS, "Response's last byte - request's first byte."),
    ("request_transfer_ms", MS, "Request's last byte - its first byte."),
    (
        "queued_ms",
        MS,
        "How long the request lay behind its predecessor: max(0, last byte of the response before - this "
        "request's last byte); "
        "0 for the first, null without a response.",
    ),
    (
        "broker_ms",
        MS,
        "Response's first byte - request's last byte - queued_ms; includes the network's round trip when "
        "captured at the client.",
    ),
    ("response_transfer_ms", MS, "Response's last byte - its first byte."),
    ("throttle_ms", MS, "ThrottleTimeMs of the response; null where the version has none."),
    (
        "hold",
        TEXT,
        "Why the broker answered when it did: data, timeout, throttled, error, immediate, replication (Produce "
        "acks=all), "
        "rebalance (JoinGroup, SyncGroup), unknown; null for APIs that wait for nothing.",
    ),
    ("request_bytes", COUNT, "Size of the request with its 4-byte length prefix."),
    ("response_bytes", COUNT, "Size of the response with its 4-byte length prefix."),
    ("in_flight", CODE, "Requests of the connection without an answer when this one was complete, itself included."),
    ("request_file", TEXT, "File that `request_frame` counts in."),
    ("request_frame", COUNT, "Number, as Wireshark counts, of the packet which completed the request."),
    ("response_file", TEXT, "File that `response_frame` counts in."),
    ("response_frame", COUNT, "Number, as Wireshark counts, of the packet which completed the response."),
    ("api_inferred", FLAG, "API and version were inferred from the response, its request was not captured."),
    ("decoded", FLAG, "Every captured body was read by the layout of its version."),
)
