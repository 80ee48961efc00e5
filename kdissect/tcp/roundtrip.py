"""The round trip between the capture point and a direction's receiver, as it is at each moment.

Acknowledgements have two forms: most of those for requests are the responses themselves, so that their time is the
round trip and the broker's work. A windowed minimum over them blames the network for a slow broker, a long window
blames the broker for a network that became slow. So the floor falls at once, and rises on proof only:

- A handshake's acknowledgement is the first floor (RFC 9293, section 3.5). Without one it is an acknowledgement without
  bytes that came within LOCAL_NS. As an upper bound, it is the second of two within FRESH_NS that agree, or any that
  took longer than PROOF_NS. After RUN more samples the least that was fresh, or the next lower one, is a bound no more.
- A sample is the time from the newest segment that is acknowledged to its acknowledgement. None where a segment that
  is acknowledged was sent twice (Karn; RFC 6298, section 3), nor for an acknowledgement inside a segment, nor a lower
  one where the acknowledgement echoes the timestamp of a copy that was not captured (RFC 3522). A bare one that was
  captured behind the answer that came after it is one all the same. Of a SYN that was sent
  again it is the time from the last copy: whichever was answered, the round trip is not less. Unless the answer echoes
  the timestamp of that copy, the next acknowledgement without bytes that took less than FRESH_NS longer is the floor.
- A sample that is not above the floor is the floor.
- A receiver acknowledges after its delayed-acknowledgement timer at the latest, even if the application does nothing:
  40 ms in Linux, and a busy host's lateness. A sample of more than the floor and PROOF_NS is the network. The floor
  rises to it where it is beyond twice that and came with bytes, or when it is the second in a row (the smaller of
  both).
- A late acknowledgement proves nothing where one before it may be missing from the capture. Either an IP id of its
  direction is missing since the bytes were sent, and none of these were sent again. Or ids do not count up, unless it
  is the second late one in a row, in a direction that sent a bare acknowledgement. (A bare acknowledgement that was not
  captured, or that a display filter removed, makes a long poll look like a slow network.)
- Both ends of a connection with equal addresses are one host: where the floor is not above LOCAL_NS, it never rises.
- RUN bare acknowledgements in a row that took more than RUN_NS longer than the floor raise it to the least of them.

The network's share of an exchange is the floor, and

- the loss because bytes up to the request's end were sent again: from its last byte to the last copy that can have been
  acknowledged. There is none when the acknowledgement says that the copy was not needed (D-SACK, RFC 2883);
- where the request stays unacknowledged for longer than that and PROOF_NS, all of the silence. An acknowledgement that
  is the response may have waited for the broker, so the time that recent answers took is left out of it. Where that
  time is not known, the silence is an upper bound;
- where the response's first byte filled a hole, the time for which later bytes had been there already.

The loss is an upper bound where an acknowledgement is missing since the copy, and that may have been a probe.

The way to the capture point is known by itself where packets carry timestamps (`kdissect.tcp.one_way`). The time of an
acknowledgement's packet beyond the least is left out of its sample and of the silence before it. The time of the
response's first packet beyond the least is added to the exchange's share.

Of a handshake's floor it is at most that as long as the direction's first bare acknowledgement may be missing. Where
neither direction sent any, they were removed: then no floor beyond LOCAL_NS is in force.

It is unknown where a request stays unacknowledged for so long and nothing proves why, and where a copy of it may be
missing from the capture. Then its acknowledgement echoes a timestamp that no captured packet had (RFC 7323, section
4.3), later than a copy can be needed.

It is at most the time between request and response.
"""

from __future__ import annotations

import enum

from kdissect.kernels.kernel import part
from kdissect.kernels.structs import Int
from kdissect.net.segment import DSACK, Segment
from kdissect.tcp.layout import COPIES, ID_STEPS, NULL, ROUNDS, SENT, Connection, Direction, Rise, Way
from kdissect.tcp.one_way import echoes_before, echoes_latest, echoes_unseen, stamp_of


class Found(enum.IntEnum):
    """How the network's share was found."""

    HANDSHAKE = 0
    ACK = 1
    BOUND = 2
    PROOF = 3
    RESENT = 4
    SILENCE = 5
    BOTH_ENDS = 6
    TIMESTAMPS = 7


class Proof(enum.IntEnum):
    """The evidence of a late acknowledgement about the network."""

    NONE = 0
    """Nothing: an earlier one may be missing."""
    LATE = 1
    """That it was as slow."""
    SAME_HOST = 2
    """Nothing, and there is no network: both ends are on one host."""
    COPY_LOST = 3
    """Nothing, and nor do copies of the request: a packet of its direction was not captured meanwhile, as the timestamp
    says that the acknowledgement echoes, or, on a connection that sent segments again, as IP ids say, or as
    acknowledgements were removed."""
    FIRST_LOST = 4
    """As NONE, in a direction that sent no acknowledgement without bytes yet: it may have been its first."""


PROOF_NS = 60_000_000
"""Linux acknowledges within 40 ms of its own (TCP_DELACK_MIN); 8 ms is what idle hosts were measured to add, the rest
is for busy ones."""
PROBE_NS = 2_000_000
"""A segment is sent again no sooner than Linux's shortest tail-loss probe (RFC 8985, and two jiffies)."""
TIMER_NS = 200_000_000
"""Linux's least retransmission timer (TCP_RTO_MIN): a D-SACK is about a segment that was sent again since."""
FRESH_NS = 30_000_000
"""An acknowledgement without bytes that came sooner than any delayed one."""
LOCAL_NS = 1_000_000
"""One host's network takes less; so does the first acknowledgement that is believed where no handshake was seen."""
REMOVED = 8
"""Late answers of a connection without any bare acknowledgement after which these were removed from the capture."""
RUN = 8
RUN_NS = 2_000_000
SLACK_NS = 50_000
"""A copy counts when its acknowledgement came nine tenths of the floor later, less this."""


@part
def sent(direction: Direction, end: Int, time: Int) -> None:
    """A segment that brought its direction further. Segments that do not fit are not timed."""
    n = direction.sent
    if n < SENT:
        direction.sent_end[n] = end
        direction.sent_at[n] = time
        direction.sent = n + 1


@part
def sent_again(direction: Direction, position: Int, packet: Segment) -> None:
    """A segment that begins at `position` came. Some of its bytes had been sent before, or it fills a hole."""
    direction.lost_segments += 1
    turn = direction.copies % COPIES
    direction.copy_at[turn] = packet.time
    direction.copy_of[turn] = position
    direction.copy_stamp[turn] = stamp_of(packet)
    direction.copies += 1
    doubted(direction, position)


@part
def sent_again_between(direction: Direction, begin: Int, end: Int) -> bool:
    """Whether bytes of a direction were sent again in the time behind `begin`, up to `end`; of many, the latest."""
    found = False
    for q in range(min(direction.copies, COPIES)):
        found |= begin < direction.copy_at[q] <= end
    return found


@part
def doubted(direction: Direction, position: Int) -> None:
    """Segments behind `position` are not timed: their acknowledgement may be that of a copy."""
    for q in range(direction.sent):
        if direction.sent_end[q] > position:
            direction.sent_at[q] = NULL


@part
def proof_of_silence(packet: Segment, connection: Connection, direction: Direction, since: Int) -> Int:
    """The `Proof` by a packet that acknowledges bytes of a direction, sent at `since`, late only now."""
    other = connection.directions[1 - direction.side]
    trip = max(direction.floor, 0) * 9 // 10
    copied = since != NULL and packet.time - since > trip + max(trip, PROBE_NS)  # a copy of it can have been needed
    if copied and direction.bares > 0 and echoes_unseen(packet, direction):
        return Proof.COPY_LOST
    removed = other.gap_at > since and acks_removed(connection)
    if direction.lost_segments > 0 and (direction.gap_at > since or removed):
        return Proof.COPY_LOST
    if _on_one_host(connection, direction.floor):
        return Proof.SAME_HOST
    again = direction.copies > 0 and direction.copy_at[(direction.copies - 1) % COPIES] > since
    if again or (other.ident >> 16 == ID_STEPS and other.gap_at <= since):
        return Proof.LATE
    counted = other.ident >> 16 > 0
    if not counted and direction.late_run >= 2 and other.bares > 0:
        return Proof.LATE
    return Proof.FIRST_LOST if other.bares == 0 and other.gap_at > since else Proof.NONE


@part
def _on_one_host(connection: Connection, floor: Int) -> bool:
    return connection.same_host == 1 and floor <= LOCAL_NS


@part
def acks_removed(connection: Connection) -> bool:
    """Whether neither direction ever acknowledged anything without bytes, as even a handshake does: these packets were
    removed from the capture."""
    return connection.directions[0].bares + connection.directions[1].bares == 0


@part
def acknowledged_before(packet: Segment, direction: Direction, acked: Int) -> None:
    """A packet without bytes acknowledges what another one did, and came before that, though it was captured behind it:
    it is the sample."""
    trip = packet.time - direction.timed_since
    came_before = acked == direction.timed_end and direction.timed_since != NULL and packet.time < direction.timed_at
    if came_before and packet.wire == 0 and 0 <= trip < direction.floor and not echoes_unseen(packet, direction):
        _set_floor(direction, trip, Found.BOUND if direction.floor_kind == Found.BOUND else Found.ACK)


@part
def acknowledged(packet: Segment, connection: Connection, direction: Direction, acked: Int) -> None:
    """Bytes of a direction up to the position `acked` are acknowledged by a packet, for the first time."""
    doubt_answer(packet, connection, direction)
    time, bare = packet.time, packet.wire == 0
    n = direction.sent
    k = 0
    doubtful = False
    while k < n and direction.sent_end[k] <= acked:
        doubtful |= direction.sent_at[k] == NULL
        k += 1
    if k == 0:
        return
    exact = direction.sent_end[k - 1] == acked
    since = direction.sent_at[k - 1]
    other = connection.directions[1 - direction.side]
    arrived_late = other.rise
    trip = time - since
    for q in range(n - k):
        direction.sent_end[q] = direction.sent_end[q + k]
        direction.sent_at[q] = direction.sent_at[q + k]
    direction.sent = n - k
    opening = direction.isn != NULL and (acked - 1) & 0xFFFFFFFF == direction.isn
    least = False
    if doubtful and opening and direction.floor < 0 and direction.copies > 0:
        trip = time - direction.copy_at[(direction.copies - 1) % COPIES]
        doubtful = False
        least = not echoes_latest(packet, direction)
    trip = max(trip - arrived_late, 0) if trip >= 0 else trip
    lowers = direction.floor < 0 or trip <= direction.floor
    direction.timed_end, direction.timed_at = acked, time
    direction.timed_since = since if exact and not doubtful else NULL
    if exact and not doubtful and trip >= 0 and not (lowers and echoes_unseen(packet, direction)):
        proof = Proof.LATE
        if trip - PROOF_NS > max(direction.floor, 0):
            direction.late_run += 1
            proof = proof_of_silence(packet, connection, direction, since)
            direction.late += proof != Proof.LATE and proof != Proof.SAME_HOST and not bare
        else:
            direction.late_run = 0
        if trip <= LOCAL_NS or direction.floor < 0 or not _on_one_host(connection, direction.floor):
            _sample(direction, trip, bare, opening, proof == Proof.LATE, acks_removed(connection))
            _note_slower(direction, trip - direction.floor, bare, other.missing_ids)
            direction.floor_least |= least


@part
def _sample(direction: Direction, trip: Int, bare: bool, opening: bool, proves: bool, removed: bool) -> None:
    """One more sample, by the rules of the module's head. `proves`: if it is late, that is the network. `removed`: of
    `acks_removed`."""
    floor = direction.floor
    if floor < 0:
        if opening and (bare or trip <= LOCAL_NS):  # with bytes the application had taken its time
            _set_floor(direction, trip, Found.HANDSHAKE)
        elif bare and trip < FRESH_NS:
            if trip <= LOCAL_NS or abs(trip - direction.candidate) <= LOCAL_NS:
                bound = trip > LOCAL_NS
                _set_floor(
                    direction, min(trip, direction.candidate) if bound else trip, Found.BOUND if bound else Found.ACK
                )
            else:
                direction.candidate = trip
        elif trip > PROOF_NS and proves:
            _set_floor(direction, trip, Found.BOUND)
        return
    if trip > floor and direction.floor_least == 1 and bare and trip - floor < FRESH_NS:
        _set_floor(direction, trip, Found.ACK)
        return
    kind = direction.floor_kind
    bound = kind == Found.BOUND
    direction.floor_samples += bound and not removed
    enough = direction.floor_samples > RUN
    if trip <= floor:
        _set_floor(direction, trip, Found.ACK if bare and (not bound or enough or trip <= LOCAL_NS) else kind)
        return
    if bound and enough and floor < FRESH_NS:
        direction.floor_kind = Found.ACK
    if trip - PROOF_NS > floor:
        if not proves:
            return
        if trip - 2 * PROOF_NS > floor and not bare:
            _set_floor(direction, trip, Found.PROOF)
        elif direction.candidate >= 0:
            _set_floor(direction, min(direction.candidate, trip), Found.PROOF)
        else:
            direction.candidate = trip
        return
    direction.candidate = -1
    if not bare:
        return
    if trip <= floor + RUN_NS:
        direction.bare_run = 0
        return
    direction.bare_least = trip if direction.bare_run == 0 else min(direction.bare_least, trip)
    direction.bare_run += 1
    if direction.bare_run >= RUN:
        _set_floor(direction, direction.bare_least, Found.ACK)


@part
def _note_slower(direction: Direction, above: Int, bare: bool, missing_ids: Int) -> None:
    """Notes whether a sample, which is so much (ns) above the floor if there is one, agrees with it. `missing_ids`: of
    the direction that acknowledges."""
    if direction.floor < 0:
        return
    if above <= LOCAL_NS:
        direction.floor_ids = missing_ids
        direction.slower = 0
    elif bare and (above < FRESH_NS or above > PROOF_NS):
        direction.slower += 1


@part
def floor_doubted(direction: Direction, answers: Direction) -> bool:
    """Whether acknowledgements that would have raised a direction's floor may be missing from the capture.

    One without bytes took longer than the floor, and packets of `answers` are missing since the last one that did not:
    with the slower ones that came they may be a run, or the second proof.
    """
    missing = answers.missing_ids - direction.floor_ids
    if direction.slower == 0 or missing == 0:
        return False
    return direction.candidate >= 0 or direction.slower + missing >= RUN


@part
def _set_floor(direction: Direction, floor: Int, kind: Int) -> None:
    direction.floor = floor
    direction.floor_kind = kind
    direction.floor_least = 0
    direction.candidate = -1
    direction.bare_run = 0


@part
def doubt_answer(packet: Segment, connection: Connection, direction: Direction) -> None:
    """Notes that the latest answer reached the client sooner than was captured, if a packet that acknowledges bytes of
    a direction says so. It says that they came twice (D-SACK, RFC 2883) where no second copy was captured, or it echoes
    the timestamp of a packet that was not captured."""
    if direction.side != 1 - connection.client:
        return
    unseen = echoes_unseen(packet, direction)
    sooner = packet.flags & DSACK != 0
    if unseen or (sooner and (direction.ahead_head >= 0 or connection.held > 0)):  # that waits may be the latest
        connection.doubted_at = packet.time
    since = connection.answered_last
    if since == NULL:
        return
    if sooner and direction.copies > direction.copies_told:
        copied = direction.copy_at[(direction.copies - 1) % COPIES]
        sooner = copied < min(since, packet.time - TIMER_NS - 2 * max(direction.floor, 0))
        direction.copies_told += 1
    if sooner or unseen:
        connection.doubted_at = packet.time
        connection.skipped = 1


@part
def lost_by_copies(packet: Segment, direction: Direction, last: Int, end: Int, acked: Int) -> Int:
    """The loss of a frame whose last byte (it ends at the position `end`) was sent at `last` and acknowledged at
    `acked` by a packet. It goes from there to the last copy that its receiver can have needed, ns, 0 none; -1 when
    copies came that were not. One that continued what was acknowledged was not, if an earlier timestamp is echoed (RFC
    7323, section 4.3)."""
    least = max(direction.floor, 0) * 9 // 10 - SLACK_NS
    lost = 0
    for q in range(min(direction.copies, COPIES)):
        at = direction.copy_at[q]
        if last < at < acked and direction.copy_of[q] < end:
            awaited = direction.copy_of[q] <= direction.acked_before
            if acked - at >= least and not (awaited and echoes_before(packet, direction.copy_stamp[q])):
                lost = max(lost, at - last)
            elif lost == 0:
                lost = -1
    return lost


@part
def came_first(packet: Segment, acked: Int, resent: Int) -> bool:
    """Whether a packet that reports bytes as arrived twice (D-SACK) speaks of the copies that made the loss `resent` of
    bytes that another packet acknowledged at `acked`. It came just after that, and copies look like probes; or it came
    before, and was captured behind it."""
    return resent > 0 and packet.time - acked <= PROBE_NS and (resent <= PROOF_NS or packet.time <= acked)


@part
def may_be_needless(direction: Direction, answers: Direction, request_end: Int, resent: Int) -> bool:
    """Whether a request's copy, `resent` (ns) behind its last byte at `request_end`, may not have been needed though
    nothing says so. It was sent as a probe is, after two round trips (RFC 8985), or when a timer had run down. An
    acknowledgement may be missing from the capture since."""
    return resent > min(max(2 * direction.floor, 0), PROOF_NS) and answers.gap_at > request_end + resent


@part
def in_force(connection: Connection, floor: Int) -> None:
    """The round trip `floor` (ns) was in force for one more answered exchange. Where more than ROUNDS differ, the
    nearest two become one: the one that held for more exchanges."""
    connection.round_min = floor if connection.round_min < 0 else min(connection.round_min, floor)
    connection.round_max = max(connection.round_max, floor)
    free = -1
    for q in range(ROUNDS):
        if connection.rounds_count[q] == 0:
            free = q
        elif connection.rounds[q] == floor:
            connection.rounds_count[q] += 1
            return
    if free < 0:
        pair, free = _nearest(connection)
        if connection.rounds_count[free] > connection.rounds_count[pair]:
            connection.rounds[pair] = connection.rounds[free]
        connection.rounds_count[pair] += connection.rounds_count[free]
    connection.rounds[free] = floor
    connection.rounds_count[free] = 1


@part
def _nearest(connection: Connection) -> tuple[Int, Int]:
    """Places of the two round trips that differ least."""
    pair, other, least = 0, 1, -1
    for q in range(ROUNDS):
        for p in range(q + 1, ROUNDS):
            apart = abs(connection.rounds[q] - connection.rounds[p])
            if least < 0 or apart < least:
                pair, other, least = q, p, apart
    return pair, other


@part
def network_share(
    connection: Connection, direction: Direction, requested: Int, answered: Int, acked: Int, bare: Int, proof: Int,
    resent: Int, way: Way,
) -> tuple[Int, Int]:  # fmt: skip
    """The network's time between a request's last byte (`requested`) and its response's first (`answered`), ns and a
    `Found`; -1, -1 where it is not known.

    `direction`: that of requests. `acked`: when the request was acknowledged, NULL not seen, `bare`: 1 without bytes, 2
    with a D-SACK, `proof`: what it proves if that was late. `resent`: of `lost_by_copies`. `way`: of the response.
    """
    floor = way.floor
    share = max(floor, 0)
    kind = way.floor_kind if floor >= 0 else -1
    again = Found.BOUND if kind == Found.BOUND else Found.RESENT
    if acked != NULL and acked >= requested:
        silence = acked - requested
        if resent > 0:
            share += resent
            kind = again
        if proof == Proof.COPY_LOST and answered - requested - share > PROBE_NS:
            return -1, -1
        if silence - PROOF_NS > share and (proof == Proof.NONE or proof == Proof.FIRST_LOST):
            return -1, -1
        if kind == Found.HANDSHAKE and proof == Proof.FIRST_LOST and bare == 0 and floor > LOCAL_NS:
            kind = Found.BOUND
        if silence - PROOF_NS > share and proof == Proof.LATE:
            share = silence if bare > 0 else silence - min(PROOF_NS, max(direction.work, 0))
            kind = Found.SILENCE if bare > 0 or direction.work >= 0 else Found.BOUND
        elif resent == 0 and bare == 0 and floor >= 0:
            work = max(silence - floor, 0)
            direction.work = work if direction.work < 0 else direction.work + (work - direction.work) // 8
    if way.first_hole != NULL and answered > requested:
        share += answered - max(way.first_hole, requested)
        kind = again
    if kind < 0 or (floor < 0 and kind == Found.RESENT) or way.rise_known == Rise.UNKNOWN:
        return -1, -1
    if floor > LOCAL_NS and way.floor_kind != Found.BOUND and acks_removed(connection):
        return -1, -1
    share += way.rise
    if way.rise > 0 and (kind == Found.HANDSHAKE or kind == Found.ACK):
        kind = Found.TIMESTAMPS if way.rise_known == Rise.KNOWN else Found.BOUND
    if _on_one_host(connection, floor):
        share = min(share, LOCAL_NS)
    return max(min(share, answered - requested), 0), kind
