"""Findings about deliveries: late records, records that are given again or never, clocks."""

from __future__ import annotations

from kdissect.analysis.findings.catalogue.kind import Kind

READER = {"reader": "[group {group}|client {client}|a client without an id]"}

KINDS = {
    "late_records": Kind(
        cause="unknown",
        rule=(
            "A consumer group (else a client) was given 10 batches of a topic or more 1 s or more after they were "
            "sent (`--slow`). It had started to read the topic before they were sent. It is information: what is at "
            "fault has a finding of its own."
        ),
        headline="{who:list reader} got records of {name} up to {longest:ms} late",
        sentence=(
            "{who:list reader} got {batches:#batch|batches} of topic {name} {late:ms} or more after they were "
            "sent, since {since:clock}: half of them after {half:ms} or more, the slowest after {longest:ms}.[ All are "
            "of {alone:?partition|partitions} {alone:list}; the topic's others were not late.] Of that time {share} "
            "belongs to batches that waited most for[?for_reader: the reader: no fetch of it that could take them was "
            "at the broker|?for_poll: the reader: its fetch at the broker had asked to wait for more "
            "(fetch.min.bytes)|?for_transaction: an open transaction|?for_replication: followers: the high watermark "
            "did not pass them|?for_broker: the broker, where a fetch was waiting|?for_throttle: a quota|?for_network: "
            "the network]."
        ),
        parts=READER,
        advice="kdissect hops prints the way of each record, with the frames to open.",
        needs="`deliveries` (delivery_ms, produced_at, waited_for, absent_ms, served_ms, times)",
        cannot_tell="lateness of batches whose Produce request was not captured.",
        example="stories/slow_consumer",
        other_causes=("client", "settings", "network"),
    ),
    "records_given_again": Kind(
        cause="client",
        rule=(
            "Two answers or more gave the same batches to a consumer group: 10 batches of a topic or more, and every "
            "tenth that it was given. Share groups do not count."
        ),
        headline="{who:list reader} was given {batches:#batch|batches} of {name} again",
        sentence=(
            "{who:list reader} was given {batches:#batch|batches} ({records:#record}) of topic {name} again, up "
            "to {most:times}.[?moved: Members joined it meanwhile: what had not been committed by then went to the "
            "next member, or to the same one after a restart.][?alone: No member joined it meanwhile: its consumer "
            "went back, or dropped what it had fetched ahead.]"
        ),
        parts=READER,
        advice="Look at rebalances and restarts of the group, and commit what was worked on before partitions go away.",
        needs="`deliveries` (times, records)",
        cannot_tell="which of the records the application had worked on.",
        example="lab/killed_aiokafka",
    ),
    "records_passed_over": Kind(
        cause="unknown",
        rule=(
            "A connection of a consumer group was given batches of a partition, then others further on. No answer gave "
            "the batches in between to any member of the group, 10 of a topic or more; another reader or follower "
            "was given them. The connection has no holes, and no member joined or left meanwhile."
        ),
        headline="{who:list reader} went past {batches:#batch|batches} of {name}",
        sentence=(
            "{who:list reader} went past {batches:#batch|batches} ({records:#record}) of topic {name}, "
            "{places:?partition|partitions} {places:list}, which {other:list reader} was given. No answer in this "
            "capture gave them to the group, and a connection of it went on behind them. Its application sought ahead, "
            "its position was reset, or it read them where this capture does not see."
        ),
        parts={**READER, "other": READER["reader"]},
        advice="Look for seeks and for auto.offset.reset=latest in the application; compare what it committed.",
        needs="`deliveries` (base_offset, last_offset), `groups`, `connections` (missing_bytes)",
        cannot_tell="batches that no other reader was given; a seek from a lost position.",
        example="deliveries/passed_over",
        other_causes=("client",),
    ),
    "clocks_disagree": Kind(
        cause="unknown",
        rule=(
            "A producer stamped records (CreateTime) more than 1 ms later than the request left that carried them. All "
            "such producers have one finding."
        ),
        headline="records of [client {client}|{producers:#producer}] are stamped up to {most:ms} ahead",
        sentence=(
            "Records are stamped later than the requests left that carried them: those of {producers:list producer}.[ "
            "Those of {others:#other producer|other producers} are not.] The clocks of these hosts are ahead of this "
            "capture's, or their applications stamp records. How long the records waited at their producers is not "
            "known there (`buffered_ms` is null)."
        ),
        parts={"producer": "[client {client}|a client without an id] (up to {ahead:ms})"},
        advice="Compare the clocks of these hosts with that of the host that captured.",
        needs="`deliveries` (created_at, produced_at, buffered_ms)",
        cannot_tell="a clock that is behind: its records seem to have waited at their producer.",
        example="deliveries/clocks",
    ),
}
"""By id."""
