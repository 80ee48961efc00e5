"""Findings about brokers: those that stood still or went away, slow answers, leaders that moved."""

from __future__ import annotations

from kdissect.analysis.findings.catalogue.kind import BROKER, CONTROLLER, SENT_AGAIN, Kind

STALLED_TOGETHER = (
    "while requests on {connections:#connection} were due ({clients:list}).[ So did {with:?broker|brokers} "
    "{with:list}. One of them stood still, and the others waited for it as their follower.]"
)
"""Who waited for a broker that answered nothing, and who was silent with it."""
STALLED_WHERE = (
    "[?fetching: Its own fetches went on meanwhile. It, or the way from it, kept only answers back.][?acknowledged: "
    "Its host acknowledged requests meanwhile. The broker's process stood still, not the network.][?waiting: Its host "
    "acknowledged requests meanwhile. The broker's process stood still or waited for followers, the network did not.]"
    "[?unseen: This capture does not show whether the process or the network stood still.][ Meanwhile "
    "{others:?broker|brokers} {others:list} answered.]"
)
"""What stood still where its own fetches do not show it, and who answered meanwhile."""

KINDS = {
    "broker_stalled": Kind(
        cause="broker",
        other_causes=("unknown",),
        rule=(
            "A broker answered nothing for 1 s or more while requests on two connections or more were due. A Fetch "
            "is due when its max_wait_ms is over, one without it in the capture never. A connection does not count "
            "where all that was due lay behind another request, such as a long poll. All of them were "
            "answered within 200 ms of the end. APIs that wait by design do not count, nor does a silence in which the "
            "network to all who waited was gone. Info where it may have been, and neither the broker's own fetches nor "
            "acknowledgements tell. "
            "Commits wait for followers, and Produce requests with acks=all, unless followers are known to have had "
            "less than half of their time. A broker for which they alone waited is left out where another one stood "
            "still, and told together with another of which no more is known. Silences of one broker that follow each "
            "other within 10 s are one finding. In a standstill no client and no broker sent anything for 1 s or more, "
            "though two brokers or more owed answers. It is reported once, as information, for no broker is its cause. "
            "So is the silence of a single broker in which no client sent anything either."
        ),
        headline={
            "once": "[brokers {name} and {with:list}|broker {broker}] answered nothing for {lasted:ms}",
            "again": (
                "[brokers {name} and {with:list}|broker {broker}] answered nothing {stalls:times}, for up to "
                "{longest:ms}"
            ),
            "standstill": (
                "no message of anyone for {lasted:ms}, though {brokers:?broker|brokers} {brokers:list} owed answers"
            ),
        },
        sentence={
            "once": "Broker {name} answered nothing for {lasted:ms} from {first:clock} on, "
            + STALLED_TOGETHER
            + "[?silent: It sent no fetches of its own either. The process or its host stood still, not only the "
            "network.]" + STALLED_WHERE,
            "again": "Broker {name} answered nothing {stalls:times} from {first:clock} to {last:clock}, for up to "
            "{longest:ms}, "
            + STALLED_TOGETHER
            + "[?silent: It sent no fetches of its own meanwhile either. The process "
            "or its host stood still, not only the network.]" + STALLED_WHERE,
            "standstill": "No client and no broker sent anything for {lasted:ms} from {first:clock} on. Answers of "
            "{brokers:?broker|brokers} {brokers:list} were due on {connections:#connection} ({clients:list}). The "
            "network, the hosts or the capture stood still, or the clock was set forward. This capture does not show "
            "which.",
        },
        advice=(
            "Look at that broker's garbage collection log, its disks and its host (steal time, swap) at that moment."
        ),
        needs=(
            "`exchanges` (capture, request_first_at, request_last_at, response_first_at, response_last_at, hold, "
            "queued_ms, network_ms, network_kind, replication_ms, agreed_ms), "
            "`produces` (acks), "
            "`fetches` (max_wait_ms, replica_id: the broker's own fetches), `connections` (client_ip, broker_ip)"
        ),
        cannot_tell=("what the process waited for. A proxy in front of the broker acknowledges in its place."),
        example="stories/slow_broker",
        starts=True,
        settled_at=BROKER,
    ),
    "broker_stopped": Kind(
        cause="broker",
        rule=(
            "All connections to a broker's port, of two clients or more whose ids are known, ended within 200 ms, none "
            "of them closed by its client first. One of them had been used within a minute. Each of the clients sent "
            "requests to another port a second later and more, and no one was served at this port for 2 s or more."
        ),
        headline="broker {brokers:list} went away[ for {away:ms}]",
        sentence=(
            "Broker {brokers:list} went away at {first:clock}. All its connections ended at once "
            "({connections:#connection} of [{clients:list}|clients without an id]), and the clients went on with "
            "other brokers. [It served again from {back:clock} on, {away:ms} later|No connection to it was used "
            "until the capture ended]."
        ),
        advice="See in that broker's log whether it was stopped, was killed, or shut itself down.",
        needs=(
            "`connections` (broker_ip, broker_port, started_at, ended_at, end_reason, closed_by, exchanges), "
            "`exchanges` (request_first_at)"
        ),
        cannot_tell=(
            "whether the process or its host ended, and a broker that one client alone was connected to. A port "
            "that refused a connection meanwhile is reported by `connections_refused`."
        ),
        example="lab/broker_restarted_librdkafka",
        starts=True,
        heads=SENT_AGAIN,
        settled_at=BROKER,
    ),
    "slow_requests": Kind(
        cause="unknown",
        other_causes=("network", "follower", "broker"),
        rule=(
            "Requests of an API took `--slow` (1 s) or more at a broker. Throttled requests and requests that wait "
            "by design do not count, nor do those for 60 % of whose time a quota muted the connection. A request "
            "that spent 60 % of its time in a standstill (`broker_stalled`) counts only if the network had half of its "
            "time. Info where the "
            "answers were cut off, and with them what a quota did. Time in which several of them overlap counts once. "
            "Medium from 10 s on, or from 2 s on where that is a fifth of the time that the client (the broker, for "
            "several clients) is in the capture. A part with 60 % of the time that was not spent queued is the cause: "
            "the network's, the followers', or the broker's own. None is where requests took ten times as long as "
            "their own turn: they waited for earlier ones of their connection. The broker's own time is not known of "
            "Produce requests with acks=all whose wait for followers is not known."
        ),
        headline="[{api}|requests] of {clients:list} to broker {broker} took up to {longest:ms}",
        sentence={
            "part": (
                "{requests:n} [{api}|unknown] {requests:?request|requests} to broker {broker} took {slow:ms} or more: "
                "{total:ms} together, {longest:ms} at most. Clients: {clients:list}.[ The network had {of_network:n} % "
                "of their time.][ Followers had {of_follower:n} % of their time.][ The broker had {of_broker:n} % of "
                "their time.]"
            ),
            "queue": (
                "{requests:n} [{api}|unknown] {requests:?request|requests} to broker {broker} took {slow:ms} or more: "
                "{total:ms} together, {longest:ms} at most. Clients: {clients:list}. Of their time {of_queue:n} % went "
                "by behind earlier requests of their connections."
            ),
        },
        advice=(
            "Show the slowest with `kdissect show`; `kdissect latency` tells whether broker, network or followers "
            "took the time."
        ),
        needs=(
            "`exchanges` (latency_ms, hold, status, throttle_ms, network_ms, queued_ms, broker_ms, replication_ms, "
            "agreed_ms), "
            "`produces` (acks), `connections` (started_at, ended_at)"
        ),
        cannot_tell="what the broker did in its time; `kdissect show` has the parts of each.",
        example="stories/slow_broker",
        settled_at=BROKER,
    ),
    "slow_fetches": Kind(
        cause="broker",
        other_causes=("unknown",),
        rule=(
            "Fetches that took `--slow` (1 s) or more beyond the wait that they agreed to. Those that waited while the "
            "network from the client's host was gone are left to `network_silent`, to whichever broker it was gone. "
            "Nothing is said of those that waited while it may have been gone, or in a standstill (`broker_stalled`). "
            "If a single broker owed answers in it, the cause is unknown. "
            "Those that waited while the broker answered nothing, for a reason that is not known, have no known cause "
            "either. Time in which several overlap counts once. Medium from 10 s on, or from 2 s on where that is a "
            "fifth of the time that the client (the broker) is in the capture."
        ),
        headline="Fetch of {clients:list} to broker {broker} took up to {longest:ms} too long",
        sentence=(
            "{fetches:#Fetch|Fetches} to broker {broker} took {slow:ms} or more beyond the agreed wait ({total:ms} "
            "together, at most {longest:ms}): {clients:list}."
        ),
        advice="Look at the broker's disks: data that is not in the page cache, or a busy host.",
        needs=(
            "`fetches` (excess_ms), `connections` (started_at, ended_at), `exchanges` (network_ms, network_kind, "
            "agreed_ms)"
        ),
        cannot_tell="fetches whose excess is unknown do not count; nothing is said of them.",
        example="stories/slow_broker",
        settled_at=BROKER,
    ),
    "slow_followers": Kind(
        cause="follower",
        rule=(
            "Produce requests with acks=all that waited `--slow` (1 s) or more for followers. Time in which "
            "several overlap counts once. Medium from 10 s on, or from 2 s on where that is a fifth of the time "
            "that the one client is in the capture. Those that waited in a standstill (`broker_stalled`) do not "
            "count."
        ),
        headline="Produce[ of {clients:list}] to broker {broker} waited for followers up to {longest:ms}",
        sentence=(
            "{requests:#Produce request} to broker {broker}[ of {clients:list}] waited {slow:ms} or more for "
            "followers ({total:ms} in all, the longest {longest:ms})[: {followers:list follower}]."
        ),
        parts={
            "follower": "broker {node} ({waits:times})",
        },
        advice=(
            "Look at that follower: its disks, its load, its way to the leader (replica.lag.time.max.ms is how "
            "long it is waited for)."
        ),
        needs="`produces` (replication_ms, waited_for, client_id), `exchanges` (agreed_ms)",
        cannot_tell="which follower, where its own fetches are not in the capture.",
        example="stories/slow_follower",
    ),
    "slow_topic": Kind(
        cause="broker",
        rule=(
            "Produce requests of one topic have a median time at the broker of 10 ms or more, and twice that of "
            "the other topics. So is their first quartile. 50 or more requests of the topic are among the first "
            "100 of their connections. Waits for followers do not count: only requests with acks=1, or whose wait "
            "for followers is known."
        ),
        headline="broker {broker} writes topic {topic} slower than other topics",
        sentence=(
            "Writing to topic {topic} takes {brokers:?broker|brokers} {brokers:list} {median:ms}, to the other "
            "topics {usual:ms} (median of {requests:n} Produce requests of {clients:list}). Its disk is slower, or "
            "that topic is flushed more often (flush.messages, flush.ms)."
        ),
        advice=(
            "Look at the disk that holds the topic's partitions (iostat), and at flush.messages and flush.ms of "
            "the topic."
        ),
        needs="`produces` (acks, broker_ms, replication_ms), `record_batches` and `producers` (topic)",
        cannot_tell=(
            "a slow disk that all topics share, and whether the disk or the topic's flush settings are the reason."
        ),
        example="stories/fsync",
        settled_at=BROKER,
    ),
    "no_leader": Kind(
        cause="unknown",
        rule=(
            "A client that writes or fetches sent three Metadata requests or more over 2 s or more, at most 1.5 s "
            "apart. All were answered without an error, and it sent nothing else meanwhile. In the 10 s before, or "
            "meanwhile, a broker refused a connection of its address, or one of its own connections ended."
        ),
        headline={
            "writes": "client {client} could not write for {lasted:ms}",
            "reads": "client {client} could not read for {lasted:ms}",
        },
        sentence={
            "writes": (
                "{client:who} asked {count:times} for metadata and wrote nothing for {lasted:ms} from "
                "{first:clock} on. It had lost {brokers:?broker|brokers} {brokers:list}[?refused:, which refused "
                "connections]. Clients ask so while a partition has no leader that they can reach."
            ),
            "reads": (
                "{client:who} asked {count:times} for metadata and read nothing for {lasted:ms} from {first:clock} "
                "on. It had lost {brokers:?broker|brokers} {brokers:list}[?refused:, which refused connections]. "
                "Clients ask so while a partition has no leader that they can reach."
            ),
        },
        advice="See why that broker was away, and when its partitions got another leader (`kdissect timeline`).",
        needs=(
            "`exchanges` (api_key, error_code, request_first_at), `connections` (client_ip, broker, end_reason, "
            "ended_at)"
        ),
        cannot_tell="which partitions had no leader, and whether the client had anything to write or to read.",
        example="lab/broker_refused_aiokafka_client",
        settled_at=BROKER,
    ),
    "leader_moved": Kind(
        cause="unknown",
        rule=(
            "Messages reported leaders of partitions that differ from those before, by a higher epoch. Partitions "
            "that move from one broker to another within 5 s are in one finding. Low where a client asked the old "
            "leader and was refused, medium where one was refused for 1 s or more. Such a move heads the errors that "
            "follow from it. The controller's moves are those of `__cluster_metadata`."
        ),
        headline={
            "partitions": (
                "[{few:list place}|{places:#partition}] moved from broker {old} to broker {new} at {at:time}"
            ),
            "controller": "the controller moved from {old} to {new}",
        },
        sentence={
            "partitions": (
                "{places:#partition} ({places:list place}) moved from broker {old} to broker {new} at {at:clock} "
                "(first reported by {source})[; these asked the old leader and were refused: {asked:list refusal}]."
            ),
            "controller": "The controller moved from {old} to {new} at {at:clock} (first reported by {source}).",
        },
        parts={
            "place": "{topic}-{partition}",
            "refusal": "[{client}|a client without an id] [for {took:ms}|once]",
        },
        advice=(
            "See why it moved (a broker that stopped, a reassignment, preferred leaders); clients that ask the old "
            "leader for long refresh their metadata late (metadata.max.age.ms)."
        ),
        needs=(
            "`leaders` (previous, leader, at), `exchanges` (error, client_id, broker: refusals of the old leader "
            "from 5 s before to 5 s after)"
        ),
        cannot_tell="why it moved, and how long a client that was refused waited for its answer from the new leader.",
        example="stories/leader_move",
        heads=("stale_leader",),
        settled_at=CONTROLLER,
    ),
}
"""By id."""
