"""Findings about the network and about connections."""

from __future__ import annotations

from kdissect.analysis.findings.catalogue.kind import BOTH, BROKER, CLIENT, SENT_AGAIN, Kind

KINDS = {
    "network_silent": Kind(
        cause="network",
        rule=(
            "Requests between two hosts were not acknowledged for 1 s or more, not even by TCP (`network_kind` "
            "silence or resent). At a broker's end it shows otherwise: clients of one address stopped at the same "
            "instant for 1 s or more, and on two connections of that address segments were sent again. They were sent "
            "as often as TCP's timers do in so long, or, from an answer on, until the next request. High on two "
            "connections or more, else medium. At a broker's end it shows only if no requests are missing. No "
            "connection of the client that was open then lacks bytes, and brokers answered no request that was not "
            "captured. It does not show either in a standstill, as of `client_paused`."
        ),
        headline={
            "acknowledgements": (
                "the network from [{clients:list}|clients without an id] to {brokers:?broker|brokers} "
                "{brokers:list} carried nothing for {lasted:ms}"
            ),
            "host": "the network of {clients:list} at {host} was away for {lasted:ms}",
        },
        sentence={
            "acknowledgements": (
                "Requests of [{clients:list}|clients without an id] at {client_ip} to {brokers:?broker|brokers} "
                "{brokers:list} at {broker_ip} were not acknowledged, not even by TCP, for {lasted:ms} from "
                "{first:clock} on. The network between the two hosts, or the other host, was gone "
                "({connections:#connection}). A host whose broker is only slow acknowledges."
            ),
            "host": (
                "{clients:?Client|Clients} {clients:list} at {host} sent no further requests for {lasted:ms} from "
                "{first:clock} on. Brokers sent segments again and again to that host, on {connections:#connection}. "
                "The network between it and the brokers was away, or the whole host was."
            ),
        },
        advice=("Look at the way between the two hosts at that moment: links, routes, firewalls, the host itself."),
        needs=(
            "`exchanges` (network_ms, network_kind, request_first_at, status), `connections` (client_ip, broker_ip, "
            "lost_segments, retransmitted_bytes, missing_bytes)"
        ),
        cannot_tell=(
            "whether the way or the whole other host was gone, and when exactly it came back. Retransmission "
            "timers double, so the first bytes come up to as much later again."
        ),
        example="stories/net_blackout_client",
        starts=True,
        settled_at=BOTH,
    ),
    "network_stall": Kind(
        cause="network",
        other_causes=("unknown",),
        rule=(
            "A message took 200 ms or more from its first to its last byte on a connection with retransmissions. The "
            "network is the cause where half as many segments were sent again as TCP's timers send in so long, or "
            "more; else it is unknown. Not where a closed receive window explains it (`window_closed`), or may explain "
            "it: the capture lacks acknowledgements that carry no bytes, or the connection's other direction. Medium "
            "from 1 s in all on."
        ),
        headline={
            "lost": (
                "{messages:#message} of [{client}|a client without an id] and broker {broker} took up to {longest:ms} "
                "on the network"
            ),
            "paused": (
                "{messages:#message} of [{client}|a client without an id] and broker {broker} stood still for up to "
                "{longest:ms}"
            ),
        },
        sentence={
            "lost": (
                "{messages:#message} on connection {connection} of [{client}|a client without an id] to broker "
                "{broker} took {stall:ms} or more to get through, while {segments:#segment} had to be sent again. The "
                "worst is the {side} of {api} {exchange}: {longest:ms}, complete in frame {frame} of {file}."
            ),
            "paused": (
                "{messages:#message} on connection {connection} of [{client}|a client without an id] to broker "
                "{broker} took {stall:ms} or more from the first byte to the last. The sender paused in the middle, or "
                "what it sent was lost before it came to this capture. The worst is the {side} of {api} {exchange}: "
                "{longest:ms}, complete in frame {frame} of {file}."
            ),
        },
        advice="Look for loss on the way: captures of both ends, given together, tell where.",
        needs=(
            "`exchanges` (request_transfer_ms, response_transfer_ms, status), `connections` (lost_segments, "
            "retransmitted_bytes, zero_window_ms), `capture_quality` (connections_without_bare_acks)"
        ),
        cannot_tell="where on the way packets were lost.",
        example="stories/lossy_2_client",
        settled_at=BOTH,
    ),
    "connections_reset": Kind(
        cause="network",
        rule=(
            "Three connections or more of two clients or more ended with a reset within 1 s, though no client had "
            "closed before an answer came. Each had been there for 2 s or more. They are half or more of the "
            "connections that these clients had open to the broker. The clients came back within 10 s and were served "
            "(a second request followed the first, and answers are in the capture), and no port of these brokers "
            "refused a connection 10 s before or after."
        ),
        headline="{connections:#connection} to {brokers:?broker|brokers} {brokers:list} were reset together",
        sentence=(
            "{connections:#connection} of [{clients:list}|clients without an id] to {brokers:?broker|brokers} "
            "{brokers:list} were reset within {lasted:ms} at {first:clock}. The clients came back and were served, "
            "and no port of these brokers refused a connection. A device on the way (a firewall, a load balancer, "
            "NAT) or a host ended them."
        ),
        advice=(
            "Look at what stands between clients and brokers (a firewall, a load balancer, NAT: restarts, full "
            "tables) and at the hosts."
        ),
        needs=(
            "`connections` (end_reason, started_at, ended_at, exchanges, rtt_ms, client_ip, client_id), `exchanges` "
            "(abandoned)"
        ),
        cannot_tell=(
            "who sent the resets. A device that forgot its connections resets each one at its next packet: one "
            "that comes more than 1 s after the first is not in the same finding."
        ),
        example="lab/reset_aiokafka_client",
        starts=True,
        heads=SENT_AGAIN,
        settled_at=BOTH,
    ),
    "window_closed": Kind(
        cause="client",
        other_causes=("broker", "settings", "unknown"),
        rule=(
            "Messages to one receiver took 200 ms or more to get through, or never ended. A receive window of "
            "their connection was closed for 1 s or more in all, and for half of that time at least. Responses "
            "wait for the client: its cause. Requests wait for the broker: its cause, or the settings' where the "
            "client is throttled, because a broker reads nothing of a connection that it mutes (KIP-219). The cause is "
            "unknown where slow requests of these connections waited for earlier ones ten times as long as for their "
            "own turn: the broker answered, but more was sent."
        ),
        headline={
            "response": (
                "{client:who} stopped reading what {brokers:?broker|brokers} {brokers:list} sent for {closed:ms}"
            ),
            "request": (
                "{brokers:?broker|brokers} {brokers:list} stopped reading what {client:who} sent for {closed:ms}"
            ),
            "throttled": (
                "{brokers:?broker|brokers} {brokers:list} stopped reading what {client:who} sent for {closed:ms}"
            ),
            "queue": "{client:who} sent more than {brokers:?broker|brokers} {brokers:list} answered, for {closed:ms}",
        },
        sentence={
            "response": (
                "{client:who} stopped reading what {brokers:?broker|brokers} {brokers:list} sent: a receive window "
                "was closed for {closed:ms}[?several: at most] ({connections:#connection}).[ {late:#response} took "
                "up to {longest:ms} to get through.][ {never:#response} never ended.] A network that is slow or "
                "loses packets does not close it."
            ),
            "request": (
                "{brokers:?Broker|Brokers} {brokers:list} stopped reading what {client:who} sent: a receive window "
                "was closed for {closed:ms}[?several: at most] ({connections:#connection}).[ {late:#request} took "
                "up to {longest:ms} to get through.][ {never:#request} never ended.] A network that is slow or "
                "loses packets does not close it."
            ),
            "throttled": (
                "{brokers:?Broker|Brokers} {brokers:list} stopped reading what {client:who} sent: a receive window "
                "was closed for {closed:ms}[?several: at most] ({connections:#connection}).[ {late:#request} took "
                "up to {longest:ms} to get through.][ {never:#request} never ended.] A network that is slow or "
                "loses packets does not close it. The client is throttled, and a broker reads nothing more of it "
                "meanwhile."
            ),
            "queue": (
                "{client:Who} sent more than {brokers:?broker|brokers} {brokers:list} answered. Requests waited for "
                "earlier ones of their connections, which were answered one after the other. This capture does not "
                "show whether the client sends too many or the broker takes too long for each. A receive window was "
                "closed for {closed:ms}[?several: at most] ({connections:#connection}).[ {late:#request} took up to "
                "{longest:ms} to get through.][ {never:#request} never ended.]"
            ),
        },
        advice={
            "response": (
                "See what the receiver does instead of reading its socket: a blocked thread or event loop, a "
                "pause, a host out of memory."
            ),
            "request": (
                "See why that broker reads no requests: a full request queue (queued.max.requests), busy request "
                "handlers, a pause."
            ),
            "throttled": (
                "Raise its quota (producer_byte_rate, consumer_byte_rate, request_percentage) or let it send less."
            ),
            "queue": (
                "See whether that client waits for answers before it sends more "
                "(max.in.flight.requests.per.connection), and what the broker needs for each of its requests."
            ),
        },
        needs=(
            "`exchanges` (request_transfer_ms, response_transfer_ms, throttle_ms, status, latency_ms, queued_ms), "
            "`connections` (zero_window_ms)"
        ),
        cannot_tell=(
            "why the receiver did not read, and whether a proxy that stands for the client is the receiver. A "
            "receiver whose buffers hold all that was sent closes no window."
        ),
        example="raw_zerowindow",
        starts=True,
    ),
    "round_trip_rose": Kind(
        cause="network",
        rule=(
            "The round trip was 4 ms or less and then, for most requests, 20 ms or more on two connections or more "
            "to a broker, proven by acknowledgements (`times.md`). Or nine of ten exchanges spent 4 ms or less on the "
            "network up to some moment, and nine of ten 20 ms or more (60 ms by acknowledgements) from then on, for "
            "2 s and longer. At the broker's end two connections or more, whose beginning was captured, end with a "
            "round trip to their client of 20 ms or more. Before that the client had asked again within 4 ms of an "
            "answer three times or more, and never in the last 2 s and four requests."
        ),
        headline={
            "broker": "the round trip to broker {broker} rose from {before:ms} to {after:ms}",
            "client": "the round trip from broker {broker} to clients rose to {after:ms}",
        },
        sentence={
            "broker": (
                "The network's round trip to broker {broker} rose from {before:ms} to {after:ms}[, from {since:clock} "
                "on] (medians of {connections:#connection}: {clients:list}). Requests take that much longer, the "
                "broker does not."
            ),
            "client": (
                "The network's round trip from broker {broker} to its clients rose to {after:ms} (median of "
                "{connections:#connection}: {clients:list}). Until {since:clock} they asked again {before:ms} after an "
                "answer, so the way was no longer than that. Their requests take that much longer, which this capture "
                "at the broker's end does not count."
            ),
        },
        advice=("Look at the way between client and broker: routes, queues, a VPN or a proxy that came in between."),
        needs=(
            "`connections` (rtt_min_ms, rtt_ms, rtt_kind, client_rtt_ms, start_seen), `exchanges` (network_ms, "
            "network_kind, request_first_at, response_last_at)"
        ),
        cannot_tell=(
            "a rise below some 60 ms without TCP timestamps: acknowledgements may be held back for 40 ms. At the "
            "broker's end it needs consumers, for producers do not ask again at once."
        ),
        example="stories/net_delay_client",
        starts=True,
    ),
    "mostly_round_trip": Kind(
        cause="network",
        rule=(
            "A client's connections to a broker have a round trip of 20 ms or more. Of the first 100 requests of "
            "each connection 20 or more, and half of them at least, spent 20 ms and half of their latency on the "
            "network. At the broker's end the round trip to the client counts, of connections whose beginning was "
            "captured, and of requests Produce alone, since fetches wait for records."
        ),
        headline="the round trip is most of what client {client} waits for at broker {broker}",
        sentence={
            "broker": (
                "The network's round trip is most of what {client:who} waits for at broker {broker}: {way:ms} of "
                "{whole:ms}. These are medians of {requests:n} requests, of the first {sampled:n} of each connection."
            ),
            "client": (
                "The network's round trip is most of what {client:who} waits for at broker {broker}: {way:ms} of "
                "{whole:ms}. These are medians of {requests:n} Produce requests, of the first {sampled:n} requests of "
                "each connection, with the round trip from the broker's end to the client added to each."
            ),
        },
        advice=(
            "Requests that wait for one another pay it each time: send more at once (batch.size, fetch.min.bytes, "
            "more in flight), or bring client and broker closer."
        ),
        needs=(
            "`connections` (rtt_ms, rtt_kind, client_rtt_ms, start_seen), `exchanges` (network_ms, latency_ms: of "
            "those requests)"
        ),
        cannot_tell="which part of the way takes it. A round trip that nothing but a bound tells is left alone.",
        example="stories/net_delay_client",
    ),
    "segments_lost": Kind(
        cause="network",
        rule=(
            "Five or more messages between a client and a broker, 1 % of their exchanges at least, waited for "
            "segments that were sent again and were needed. Medium from 1 s in all on. Where no exchange shows that, "
            "as at the broker's end, segments that were sent again between two hosts are low: 20 or more, 2 % of their "
            "packets at least, on two connections or more. Probes and segments into a closed window do not count. Nor "
            "do connections whose acknowledgements without bytes, or whose other direction, the capture lacks."
        ),
        headline={
            "messages": "the network lost segments between client {client} and broker {broker}",
            "hosts": "{lost:#segment} between {client_ip} and {broker_ip} were sent again",
        },
        sentence={
            "messages": (
                "Segments between [{client}|a client without an id] and broker {broker} were lost: "
                "{messages:#message} waited until they were sent again, {total:ms} in all (the longest {longest:ms}). "
                "In all {lost:n} segments of {packets:n} packets were sent again, {percent} %."
            ),
            "hosts": (
                "Of {packets:n} packets between {client_ip}[ ({clients:list})] and {broker_ip}[ "
                "({brokers:?broker|brokers} {brokers:list})] {lost:n} segments were sent again, {percent} %: the "
                "network loses packets. How long messages waited for them this capture does not show."
            ),
        },
        advice=(
            "Look for what drops packets between the two: queues, duplex or offload settings, a full conntrack table."
        ),
        needs=(
            "`exchanges` (request_resent_ms, response_resent_ms, network_kind, network_ms, status), `connections` "
            "(lost_segments, packets, exchanges, retransmitted_bytes, zero_window_ms), `capture_quality` "
            "(connections_without_bare_acks)"
        ),
        cannot_tell=(
            "where they were lost. Segments that were sent again needlessly count among the segments only. At the "
            "broker's end it cannot tell loss all the time from a network that was gone for a while (`network_silent`)."
        ),
        example="rules/loss",
    ),
    "requests_cut_off": Kind(
        cause="unknown",
        rule=(
            "The connection ended, and no byte of the answer came. Info: a consumer that stops leaves its long poll so."
        ),
        headline="{requests:#request} of client {client} to broker {broker} got no answer before the end",
        sentence=(
            "{requests:#request} ([{apis:list}|unknown]) of [{client}|a client without an id] to broker {broker} "
            "got no answer: {connections:#connection} ended[, {resets:n} of them by a reset]."
        ),
        needs="`exchanges` (status), `connections` (end_reason)",
        cannot_tell="whether the broker had worked on them.",
        example="rules/tls",
        settled_at=BROKER,
    ),
    "requests_given_up": Kind(
        cause="client",
        other_causes=("network", "follower", "broker", "unknown"),
        rule=(
            "Answers that came after the client had closed the connection, and what was open on the same "
            "connections. Info unless Produce requests were among them. Where answers took `--slow` (1 s) or more, "
            "the part with 60 % of their time is the cause, as of `slow_requests`; the client is where none did. "
            "Requests that wait by design, such as Fetch, do not count for that."
        ),
        headline="client {client} gave up {requests:#request} to broker {broker}",
        sentence=(
            "{client:who} gave up {requests:#request} ([{apis:list}|unknown]) to broker {broker}: it had closed "
            "{connections:#connection} before the answers came.[ The slowest took {longest:ms}.][ The network "
            "had {of_network:n} % of the slow ones' time.][ Followers had {of_follower:n} % of the slow ones' time.]"
            "[ The broker had {of_broker:n} % of the slow ones' time.][ Of the slow ones' time {of_queue:n} % went by "
            "behind earlier requests of their own connections.][?produced: The client may write these records again.]"
        ),
        advice="Its request.timeout.ms was shorter than the answer took; look at why that took so long.",
        needs=(
            "`exchanges` (abandoned, status, latency_ms, network_ms, queued_ms, broker_ms, replication_ms), `produces` "
            "(acks), `connections` (started_at, ended_at)"
        ),
        cannot_tell="whether the client sent them again: see `batches_written_twice`.",
        example="stories/slow_broker",
        settled_at=CLIENT,
    ),
    "short_connections": Kind(
        cause="client",
        rule=(
            "One client opened 20 or more connections that ended within 2 s after 5 exchanges at most. Fewer than half "
            "of them ended at a refused login."
        ),
        headline="client {client} opened {connections:#connection} that lived at most {lived:ms}",
        sentence=(
            "{client:who} at {ip} opened {connections:#connection} that lived no longer than {lived:ms} and "
            "carried at most {most:n} exchanges each."
        ),
        advice="Keep one producer or consumer per process instead of one per message; or see why it reconnects.",
        needs="`connections` (started_at, ended_at, exchanges, end_reason), `exchanges` (error_code)",
        cannot_tell="why it reconnects.",
        example="raw_errors",
    ),
    "several_addresses": Kind(
        cause="client",
        rule="Kafka connections with one client id from two addresses or more.",
        headline="client id {client} comes from several addresses",
        sentence=("{client:who} comes from {addresses:n} addresses: figures by client id hold all of them together."),
        needs="`connections` (client_id, client_ip)",
        cannot_tell="whether they are several processes or one that moved.",
        example="rules/addresses",
    ),
}
"""By id."""
