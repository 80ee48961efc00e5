"""The state between packets: one heap of int64 words.

The stream kernels share one array `M` (few arguments compile and call much faster than many). It begins with control
words and small tables at fixed places, then room for output rows. Behind them come the structs, which are known by the
place of their first word: `connection_at(M, place).last`. Nodes are pieces of the frame that is being received, of a
window that is searched for a frame, and segments that arrived ahead of a hole. The heap grows at its end only, between
two calls of a kernel, so places stay and kernels may hold on to a struct.

Positions are stream positions: sequence numbers unwrapped to 64 bits. `at` is a logical input offset (see
`kdissect.capture`); HOLE and CUT stand there for bytes that were never captured and for bytes that a snap length cut
off.
"""

from __future__ import annotations

import enum
from typing import Annotated

import numpy as np

from kdissect.kernels.structs import struct, view, width

NULL = -(2**63)
"""No time known."""

HOLE = -1
CUT = -2

AS_NOW = -2
"""Of `Arrival.floor`."""

UNTOLD = -1
"""Of `Connection.closer`."""

RECENT = 48
"""Packets remembered per direction to recognise a second copy: both copies of a burst arrive interleaved, within it,
or one burst after the other; the initial window of Linux is 10 segments, and 44 is what offload makes of 64 KiB."""
REMEMBERED = 12
"""Segments with bytes that are remembered per direction, to compare what is sent again with."""
ID_STEPS = 2
"""Ids are taken to count up after as many steps in a row; random ones do so once in 2**16 packets."""
TICK = 16
SENT = 8
"""Segments in flight whose acknowledgement is timed."""
COPIES = 4
STAMPS = 8
"""Timestamps remembered per direction: an echo of another one is that of a packet that was not captured."""
ROUNDS = 6
"""Round trips of a connection that are told apart, for their median."""


class End(enum.IntEnum):
    """How a connection ended."""

    OPEN = 0
    FIN = 1
    RST = 2
    REPLACED = 3
    """The same 4-tuple began a new connection."""
    IDLE = 4
    """The same 4-tuple was used again after it had ended, without a SYN captured."""


class Sasl(enum.IntEnum):
    """Whether frames may be bare tokens of the old login."""

    NONE = 0
    BARE = 1
    """SaslHandshake v0 was sent: tokens follow as bare length-prefixed frames, whether or not its answer was
    captured."""


class Login(enum.IntEnum):
    """The events that move a `Sasl` on."""

    HANDSHAKE = 0
    """SaslHandshake v0 was sent."""
    REFUSED = 1
    """The client's latest request is a SaslHandshake, and its answer has an error."""
    REQUEST = 2
    """A frame of the client reads as a Kafka request."""


LOGINS = np.array(
    [  # HANDSHAKE  REFUSED    REQUEST
        [Sasl.BARE, Sasl.NONE, Sasl.NONE],
        [Sasl.BARE, Sasl.NONE, Sasl.NONE],
    ],
    np.int64,
)  # fmt: skip
"""The next `Sasl` by the present one and a `Login`."""


class Mode(enum.IntEnum):
    """The state of a direction's search for frames."""

    SEARCH = 0
    """The place of the next frame is not known (a stream begins like this too)."""
    FRAMES = 1
    IGNORED = 2


class Sight(enum.IntEnum):
    """The events that move a `Mode` on."""

    LOST = 0
    """Bytes are missing, or no frame can begin like this."""
    FOUND = 1
    """A frame begins here."""
    REFUSED = 2
    """The connection is not Kafka, or stays closed."""


MODES = np.array(
    [  # LOST        FOUND         REFUSED
        [Mode.SEARCH, Mode.FRAMES, Mode.IGNORED],
        [Mode.SEARCH, Mode.FRAMES, Mode.IGNORED],
        [Mode.IGNORED, Mode.IGNORED, Mode.IGNORED],
    ],
    np.int64,
)  # fmt: skip
"""The next `Mode` by the present one and a `Sight`."""


class Phase(enum.IntEnum):
    """How far the packet is that is taken now."""

    NEW = 0
    TAKEN = 1
    """What it sets free is left."""


class Rise(enum.IntEnum):
    """What is known of how much longer than at its fastest a packet was on its way."""

    KNOWN = 0
    BOUND = 1
    """It is at most this: the clock of a connection that was met in its middle may have drifted as far."""
    UNKNOWN = 2
    """Nothing: the connection was met in its middle, and too few packets came to know its fastest."""


class Final(enum.IntEnum):
    """Whether more packets of a connection may come."""

    DRAINING = -1
    """No, and what waits behind holes is taken, while searches still hope for more."""
    RUNNING = 0
    ENDED = 1
    """It is finished and had ended."""
    CAPTURE_ENDED = 2
    """It is finished because the capture ended."""


@struct
class Clock:
    """The delay to the capture point, from timestamps of a direction's packets (`kdissect.tcp.one_way`), ns."""

    begun: int
    """1 once a first timestamp came."""
    tick: int
    """Of the sender's clock; 0 not found yet, -1 nothing can be known."""
    first_time: int
    """When that packet came, ns."""
    first_stamp: int
    """Its timestamp."""
    stamp: int
    """The latest timestamp, in ticks since the first."""
    base: int
    """The least delay, as it was at `base_time`."""
    base_time: int
    """When that was so, ns."""
    raised: int
    """1 while a window's minimum was above what clocks explain."""
    window_since: int
    """When the window began, ns."""
    minimum: int
    """The window's least delay."""
    minimum_time: int
    """When its packet came, ns."""
    count: int
    """Packets of the window."""
    settled_at: int
    """When ENOUGH packets had been compared to know the least, 0 not yet."""
    minimum_before: int
    """Of the window before, NULL none."""
    time_before: int
    """When the packet of that one came, ns."""
    drift: int
    """What minima of neighbouring windows differ by, added up, and the time between them."""
    drift_time: int
    """That time, ns."""
    level: int
    """The rise that several packets agreed on, 0 none."""
    above: int
    """How many packets in a row were above it."""
    least: int
    """The least of them."""
    over: int
    """The rise of the latest packet."""


@struct
class Arrival:
    """The round trips known when a segment came, and was acknowledged, that waits behind a hole."""

    rise: int
    """How much longer than the fastest it was on its way, ns."""
    floor: int
    """Round trip of the other direction's bytes then, ns, -1 unknown; AS_NOW: that of now holds, for the stream was met
    in its middle, and its first bytes may still come, or what it is was not known."""
    floor_kind: int
    """How that was found."""
    acked: int
    """When it was acknowledged, NULL not yet."""
    bare: int
    """As of a request (`kdissect.kafka.streams.state`), here and below."""
    proof: int
    """As of a request, too."""
    resent: int
    """As of a request, too."""


@struct
class Direction:
    """One direction of a connection."""

    next: int
    """The position of the next byte in order."""
    started: int
    """0 nothing seen, 1 the position of the first data is a guess, 2 known from a SYN."""
    mode: int
    """A `Mode`."""
    need: int
    """Body bytes of the current frame still to come; -1 between frames."""
    size: int
    """Body bytes of the current frame."""
    first: int
    """When the current frame's first byte came, ns."""
    latest: int
    """When the latest of its bytes came, ns."""
    packet: int
    """The packet that brought the latest of them."""
    prefix_bytes: int
    """How many bytes of the current length prefix are there, 0 to 3."""
    prefix: int
    """What they say so far."""
    at: int
    """The only piece so far of the current frame (or -1 when there are nodes, or none)."""
    length: int
    """Its bytes."""
    head: int
    """First node of the current frame's pieces, or of the window that is searched, -1 none."""
    tail: int
    """The last of these nodes."""
    missing: int
    """Bytes of the current frame in holes."""
    cut: int
    """Bytes of the current frame cut off by the snap length."""
    ahead_head: int
    """First node of the segments that wait behind a hole, -1 none."""
    ahead: int
    """Segments ahead of the hole."""
    ahead_bytes: int
    """Their bytes."""
    acked: int
    """Highest position of this direction that the other side acknowledged, NULL unknown."""
    fin: int
    """1 once it sent a FIN."""
    hole_since: int
    """Value of the connection's `packets` when `hole_acked` was noted, -1: no hole is known to be acknowledged."""
    retransmitted: int
    """Bytes that were sent again."""
    out_of_order: int
    """Segments that came behind later ones, and were not sent again."""
    missing_total: int
    """Bytes of the direction that were never captured."""
    packets: int
    """Packets of the direction."""
    bytes: int
    """Bytes of payload on the wire, those sent again too."""
    zero_since: int
    """Since when its receive window is closed, ns, NULL: it is open."""
    zero_total: int
    """How long it was closed before, ns."""
    window: int
    """Bytes in the window that is searched for a frame."""
    searched: int
    """Offset in the window before which no frame can begin."""
    budget: int
    """What trials may still cost in this search."""
    wild: int
    """Where a segment ended that was too far ahead to be believed, -1 none: one that goes on there is."""
    floor: int
    """Round trip of the direction's bytes and their acknowledgement, ns, -1 unknown (`kdissect.tcp.roundtrip`)."""
    floor_kind: int
    """How it was found: a `Found`."""
    floor_ids: int
    """Value of the other direction's `missing_ids` when an acknowledgement last took no more than LOCAL_NS longer."""
    slower: int
    """How many without bytes took longer since, and no delayed-acknowledgement timer can be why."""
    floor_samples: int
    """How many acknowledgements were timed while the floor was an upper bound."""
    floor_least: int
    """1 while the floor is no more than what the handshake took at least: a SYN was sent again, and another copy of it
    than the last may have been answered."""
    candidate: int
    """A first proof that it rose, ns, -1 none."""
    work: int
    """What answers that are acknowledgements took beyond the floor of late, ns, -1 unknown."""
    bare_run: int
    """How many bare acknowledgements in a row took longer than the floor."""
    bare_least: int
    """The smallest of them."""
    late: int
    """How many answers acknowledged bytes of the direction later than any host delays it, though a bare acknowledgement
    may be missing before them; and how many of them in a row."""
    late_run: int
    """See `late`."""
    bares: int
    """How many packets of the direction were acknowledgements without bytes."""
    gap_at: int
    """When a packet of the direction came whose IP id says that one before it was not captured, NULL never."""
    missing_ids: int
    """How many packets of the direction were not captured, as IP ids say: those that came late count too."""
    id_span: int
    """How many IP ids the latest packet took: one for each segment that was offloaded with it."""
    mss: int
    """Bytes of payload in a segment of the direction, 0 unknown or without a bound."""
    sent: int
    """How many of `sent_end` and `sent_at` are segments that are not acknowledged yet, the oldest first."""
    copies: int
    """How many segments were sent again so far; the last COPIES are in `copy_at` and `copy_of`."""
    copies_told: int
    """Of how many of them acknowledgements said that they came twice."""
    ahead_since: int
    """When the first of the segments came that wait behind a hole."""
    filled_at: int
    """When the latest hole was filled, NULL never."""
    filled_from: int
    """Since when it had been known."""
    waited: Arrival
    """Of the segment that is read now, if it waited behind a hole; else its `acked` is NULL."""
    lost_segments: int
    """Segments that were sent again, or that filled a hole."""
    rise: int
    """How much longer than the fastest the latest packet was on its way here, ns, 0 where that is not known."""
    first_rise: int
    """The same of the packet that brought the current frame's first byte."""
    stamps: Annotated[list[int], STAMPS]
    """Timestamps of the latest packets, their low 30 bits and 1 more, each once; 0: the place is free."""
    stamp_turn: int
    """Which of them is the next to be forgotten."""
    clock: Clock
    """What its timestamps say of delays."""
    closed_at: int
    """When the direction sent its first FIN or RST, NULL not yet."""
    sent_end: Annotated[list[int], SENT]
    """The position behind a segment."""
    sent_at: Annotated[list[int], SENT]
    """When it was sent, NULL if it was sent again."""
    copy_at: Annotated[list[int], COPIES]
    """When a segment was sent again."""
    copy_of: Annotated[list[int], COPIES]
    """The position of its first byte."""
    copy_stamp: Annotated[list[int], COPIES]
    """Its timestamp, as in `stamps`; 0: it has none."""
    acked_before: int
    """Highest position that was acknowledged before `acked`, NULL unknown."""
    timed_end: int
    """The position behind the latest segment that was timed, when it was sent (NULL: in doubt), and acknowledged."""
    timed_since: int
    """See `timed_end`."""
    timed_at: int
    """See `timed_end`."""
    frames: int
    """Frames that were found."""
    begin16a: int
    """The first eight bytes of the direction, to name protocols by."""
    begin16b: int
    """The eight behind them."""
    begun: int
    """1 when its very first bytes are there, or may still come."""
    cut_total: int
    """Bytes that a snap length cut off."""
    skipped: int
    """Bytes that the present search has passed over."""
    highest: int
    """The highest position so far, behind a segment's last byte."""
    highest_time: int
    """When its segment came, ns."""
    recent: int
    """Place in the ring of recent packets, which tells duplicates."""
    ahead_tail: int
    """The last node of the segments that wait behind a hole, -1 none."""
    isn: int
    """Sequence number of the SYN, NULL unknown."""
    side: int
    """0 or 1: which direction of the connection this is."""
    lost: int
    """Value of `packets` of the connection when bytes of this direction were last given up, -1 never."""
    unseen_until: int
    """Up to when whole frames, or a part of one, may be missing of what was captured, ns, NULL: nothing is missing
    since the direction's first byte."""
    unsettled: int
    """1 while the first bytes may still come: the stream was met in its middle, and captures reorder."""
    viewpoint: int
    """Where the packet was seen that last brought the direction further (`viewpoint` of its segment)."""
    ident: int
    """The latest IP id, 16 bits; above it how often in a row ids went up a little, at most ID_STEPS."""
    hole_acked: int
    """What was acknowledged then: holes before it are given up together."""
    tried: int
    """Bytes of the window when it was last searched."""
    ring: Annotated[list[int], RECENT]
    """The ring of recent packets, a word each: 40 bits of what tells the packet from others, 24 bits of time in units
    of 2**TICK ns (they come round after 18 minutes; where IP ids do not count up, a packet is looked for that was seen
    within 0.1 s)."""

    kept_turn: int
    """Which of the remembered segments is the next to be forgotten."""
    kept_from: Annotated[list[int], REMEMBERED]
    """Positions of the remembered segments' first bytes."""
    kept_size: Annotated[list[int], REMEMBERED]
    """Bytes captured of them; 0: the place is free."""
    kept_print: Annotated[list[int], REMEMBERED]
    """Their fingerprints."""
    kept_at: Annotated[list[int], REMEMBERED]
    """Where they lie, -1 where that is not at hand any more."""
    kept_packet: Annotated[list[int], REMEMBERED]
    """The packets that brought them."""


@struct
class Connection:
    """A connection with its two directions."""

    flow: int
    """Number of its flow."""
    place: int
    """Where on the heap it lies."""
    first: int
    """Time of the first packet, ns."""
    sequence: int
    """Sequence number of the first packet, with its direction in bit 32."""
    last: int
    """Time of the latest packet, ns."""
    start_seen: int
    """1 when a SYN was captured."""
    end: int
    """An `End`."""
    closer: int
    """1 more than the direction that sent the first FIN or RST, 0 none did yet, UNTOLD: another may have come before,
    which was not captured."""
    client: int
    """The direction that carries requests, -1 unknown."""
    kafka: int
    """1 once a frame was confirmed, -1 once it was ruled out, 0 undecided."""
    packets: int
    """Packets so far."""
    request_head: int
    """The oldest request that waits, -1 none."""
    request_tail: int
    """The newest of them."""
    requests_open: int
    """How many wait."""
    requests: int
    """Ordinal of the last request."""
    orphans: int
    """Responses without a request so far: the next one's ordinal."""
    answered_last: int
    """When the last byte of the latest response arrived."""
    sasl: int
    """A `Sasl`."""
    same_host: int
    """1 when both ends have the same address."""
    answered_rise: int
    """How much longer than the fastest its packet was on its way."""
    skipped: int
    """1 when it is not known when the answer before the next one ended: bytes of it are missing from the capture, or it
    came sooner than was captured."""
    doubted_at: int
    """When a packet of the client last said that it had the answer before sooner than that was captured, NULL never."""
    think_packets: int
    """Value of `packets` when `think_from` was set."""
    think_from: int
    """Since when the client waits for nothing: the last byte of the latest response, NULL unknown."""
    unacked: int
    """The oldest waiting request whose last byte the broker's host did not acknowledge yet, -1 none."""
    round_min: int
    """Smallest and largest round trip to the broker that was in force for an answered exchange, ns, -1 none."""
    round_max: int
    """See `round_min`."""
    rounds: Annotated[list[int], ROUNDS]
    """Round trips (ns) that were in force."""
    rounds_count: Annotated[list[int], ROUNDS]
    """For how many answered exchanges each of them was; 0: the place is free."""
    client_id: int
    """Code of the first client id, -1 none so far."""
    problems: int
    """Rows of problems so far."""
    exchanges: int
    """Exchanges so far."""
    number: int
    """Number of the connection in its capture, in order of first packets."""
    held_head: int
    """The oldest response that waits for its request, -1 none."""
    held: int
    """How many wait."""
    first_packet: int
    """The packet that began it."""
    tokens: int
    """Bare SASL tokens so far."""
    duplicates: int
    """Copies of packets that were left out."""
    news: int
    """1 when its endpoints' roles are not told to the host yet."""
    sealed: int
    """1 when it is TLS and its bytes go to the host, which brings plaintext back."""
    unordered: int
    """0 while the ids of the requests that wait ascend."""
    asked: int
    """Correlation id of the last request."""
    answered_to: int
    """Up to where the answers were acknowledged when it came."""
    asked_missing: int
    """Value of `missing_total` of its direction then."""
    repeats: int
    """How many requests had the id of the one before."""
    pipelined: int
    """1 once a request was surely sent before the answer to the one before it had come."""
    directions: Annotated[list[Direction], 2]
    """The first is from the endpoint that sorts first."""


@struct
class Way:
    """The round trips known when a response came (a frame of the direction from the broker)."""

    rise: int
    """How much longer than the fastest the packet of its first byte was on its way, ns."""
    rise_known: int
    """A `Rise`: how sure that is."""
    last_rise: int
    """The same of its last byte."""
    floor: int
    """Round trip of the requests' direction, ns, -1 unknown."""
    floor_kind: int
    """How that was found."""
    first_hole: int
    """When later bytes than its first had come, NULL where it filled no hole."""
    last_hole: int
    """The same of its last byte."""
    skipped: int
    """That of the connection before it."""
    behind: int
    """When the last byte of the answer before it arrived, NULL not known."""
    behind_rise: int
    """How much longer than the fastest the packet of that byte was on its way."""


@struct
class Node:
    """A piece of a stream."""

    next: int
    """The next of its list, -1 none; the next free one."""
    at: int
    """Where its bytes lie."""
    length: int
    """Captured bytes in the low 31 bits; of a segment that waits, bytes on the wire from bit 32 on."""
    time: int
    """When it came, ns."""
    packet: int
    """The packet that brought it."""
    position: int
    """Stream position (segments that wait behind a hole), or 1 where a segment begins (pieces of a search window)."""
    hole_since: int
    """Of a segment that waits behind a hole, and filled another one: when bytes behind it had come, else NULL."""
    arrival: Arrival
    """Of a segment that waits behind a hole."""


@struct
class Control:
    """The words that the kernels and their host exchange, at CONTROL."""

    node_free: int
    """First free node, -1 none; free structs are chained through their first word."""
    nodes_left: int
    """How many nodes are free."""
    final: int
    """A `Final`."""
    connection_free: int
    """First free connection, -1 none."""
    number: int
    """Connections so far."""
    resume: int
    """How many of the rows that `run` was given are done."""
    phase: int
    """The `Phase` of the packet at `resume`."""
    problems: int
    """Rows of problems for the host."""
    out: int
    """Rows of exchanges for the host."""
    request_free: int
    """First free request that was taken before, -1 none."""
    request_fresh: int
    """The first request that was never taken: those from there on are free too, and zeros."""
    requests_left: int
    """How many requests are free."""
    last_request: int
    """The place behind which no request has ever waited."""
    client_ids: int
    """Client ids that are known."""
    client_bytes: int
    """Their bytes."""
    ended: int
    """Rows of finished connections for the host."""
    connections_left: int
    """How many connections are free."""
    slot: int
    """Address of the slot that is filled now."""
    sealed: int
    """Rows of sealed bytes for the host."""
    sealing: int
    """1 when the host takes them."""
    lane: int
    """0 when no packet may take the fast lane, else 1 more than have taken it."""
    news: int
    """1 when `news` of some connection is."""


@struct
class Outgoing:
    """The next bytes of a stream, at OUT."""

    at: int
    """Where they lie, HOLE or CUT."""
    captured: int
    """How many were captured."""
    wire: int
    """How many were on the wire."""
    time: int
    """When they came, ns."""
    packet: int
    """The packet that brought them."""
    arrival: Arrival
    """Of a segment that waited."""


@struct
class Problem:
    """A row of problems."""

    kind: int
    """A `kdissect.problems.Kind`."""
    connection: int
    """Number of the connection."""
    time: int
    """When it showed, ns."""
    packet: int
    """The packet that showed it."""
    direction: int
    """0 or 1: the direction of the connection."""
    position: int
    """Stream position where it is."""
    bytes: int
    """How many bytes it is about."""
    detail: int
    """What the kind has besides, such as another packet."""


connection_at = view(Connection)
node_at = view(Node)
control_at = view(Control)
outgoing_at = view(Outgoing)
problem_at = view(Problem)

# ---- the heap
CONTROL = 0
SLOTS = 32
"""Copy of the window's slots: MAX_SLOTS triples."""
MAX_SLOTS = 64
OUT = SLOTS + 3 * MAX_SLOTS
HEAP = OUT + 16
"""First word that layers above may use."""

CONNECTION_WIDTH = width(Connection)
NODE_WIDTH = width(Node)
PROBLEM_WIDTH = width(Problem)
