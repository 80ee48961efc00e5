"""Findings about what the capture itself cannot show."""

from __future__ import annotations

from kdissect.analysis.findings.catalogue.kind import Kind

KINDS = {
    "capture_cut_short": Kind(
        cause="capture",
        rule="Packets are longer than what was kept of them.",
        headline="the capture cut packets short",
        sentence="{packets:#packet} {packets:?is|are} cut short: the rest of their messages is lost.",
        advice="Record whole packets (tcpdump -s 0).",
        needs="`capture_quality` (snapped_packets)",
        example="field_snap96",
    ),
    "capture_without_acks": Kind(
        cause="capture",
        rule=(
            "Connections whose acknowledgements without data were removed (`tshark -Y 'tcp.len>0'`, \"export "
            'displayed packets"): eight answers came later than a host delays an acknowledgement, with packets '
            "missing before them, and none was seen."
        ),
        headline="the capture lacks TCP's bare acknowledgements",
        sentence=(
            "{connections:#connection} {connections:?has|have} no TCP acknowledgement without data: a filter "
            "removed them. Where answers took long, network_ms is unknown and broker_ms is an upper bound."
        ),
        advice="Record, and export, whole connections: TCP's acknowledgements say what the network took.",
        needs="`capture_quality` (connections_without_acks)",
        cannot_tell=(
            "whose the time of a slow answer was. There `network_ms` is null and `broker_ms` is an upper bound."
        ),
        example="rules/data_only",
    ),
    "capture_one_way": Kind(
        cause="capture",
        rule=(
            "Connections have two messages or more, all of them requests without answers or answers without requests."
        ),
        headline="the capture has one direction only of {messages:#message}",
        sentence=(
            "{messages:#message} of {connections:#connection} came without the other direction: their latencies "
            "and errors are not known."
        ),
        advice="Record on the client's or the broker's own host, without a filter on src or dst.",
        needs="`exchanges` (status, connection_id)",
        example="field_to_broker",
    ),
    "capture_began_late": Kind(
        cause="capture",
        rule="Kafka connections whose opening was not captured.",
        headline="{connections:#connection} began before the capture",
        sentence=(
            "{connections:#Kafka connection} began before the capture did: their logins, fetch sessions and open "
            "requests are not known."
        ),
        advice=("Begin before the client connects, where its login, its fetch session or its transaction matters."),
        needs="`connections` (start_seen)",
        example="field_midstream",
    ),
}
"""By id."""
