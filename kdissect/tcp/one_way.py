"""How much longer than at its fastest a packet was on its way to the capture point, from TCP timestamps (RFC 7323).

Arrival less the sender's timestamp is the delay of one way plus an unknown offset: less its minimum, it is the delay
above the least. The rules, per direction:

- The tick of the sender's clock is found from LEARN_NS: the one of TICKS within a quarter. Without one until four times
  as long nothing is known for the rest of the connection (as with a constant timestamp, or none).
- The floor is a line: the least so far, and the drift of the two clocks against each other. A packet below it is the
  new floor at once. The minimum of a window of WINDOW_NS moves the floor up only as far as clocks explain: FREE_PPM of
  its age, KNOWN_PPM once the drift is known, a quarter of a tick. More is a rise, and the floor stays until it ends.
- The drift is the mean difference of window minima, without differences that no clock explains (CLOCK_PPM). So a step
  is neither learned as drift nor in the way of it. A rise slower than CLOCK_PPM (6 ms a minute) is taken for drift.
- Nothing is a rise within one and a half ticks, SLACK_NS at least beyond one, and what clocks explain.
- FEW packets in a row above the level make their least the new level; within a tick of the level, it is the level.
  Before there is one, a packet's own delay counts, less half a tick.

Of a connection that was met in its middle the least is known once ENOUGH packets were compared. Until the drift is
known a rise that it could explain is an upper bound: a longer look shows it as drift.

SYN and RST are left out: SYN cookies keep options in a timestamp's low bits, and answers in TIME-WAIT have another
clock. A retransmission has a timestamp of its own, and shows no rise.
"""

from __future__ import annotations

from kdissect.kernels.kernel import part
from kdissect.kernels.structs import Int
from kdissect.net.segment import ECHO_BITS, RST, STAMP_BITS, SYN, Segment
from kdissect.tcp.layout import NULL, STAMPS, Clock, Connection, Direction, Rise

LEARN_NS = 300_000_000
WINDOW_NS = 4_000_000_000
ENOUGH = 8
"""Packets that a window has at least."""
SETTLED_NS = 6 * WINDOW_NS
"""Drift is known after as much time between window minima."""
FREE_PPM, KNOWN_PPM, CLOCK_PPM = 100, 20, 150
"""Crystals are within 100 ppm; NTP slews by no more than 500, and keeps to tens."""
SLACK_NS = 500_000
FEW = 4
MILLION = 1_000_000
STAMP_MASK, ECHO_MASK = (1 << STAMP_BITS) - 1, (1 << ECHO_BITS) - 1
OFF = -1
"""Of `tick`: nothing can be known."""


@part
def _tick_of(time: Int, stamps: Int) -> Int:
    """Of 1 us, 1, 4, 10 and 100 ms the tick that so many of are this time, ns; OFF none within a quarter."""
    if stamps <= 0:
        return OFF
    candidate = 1_000
    while candidate <= 100_000_000:
        if 3 * candidate * stamps < 4 * time < 5 * candidate * stamps:
            return candidate
        candidate = 1_000_000 if candidate == 1_000 else 4_000_000 if candidate == 1_000_000 else (
            10_000_000 if candidate == 4_000_000 else 10 * candidate
        )  # fmt: skip
    return OFF


@part
def stamp_of(packet: Segment) -> Int:
    """A packet's timestamp, its low 30 bits and 1 more; 0: it has none."""
    return (packet.stamp - 1 & ECHO_MASK) + 1 if packet.stamp != 0 else 0


@part
def echoes_before(packet: Segment, stamp: Int) -> bool:
    """Whether a packet echoes a timestamp that is earlier than `stamp` (of `stamp_of`)."""
    echo = packet.stamp >> STAMP_BITS
    return echo != 0 and stamp != 0 and 0 < (stamp - echo - 1) & ECHO_MASK < (ECHO_MASK + 1) // 2


@part
def rise_known(connection: Connection, direction: Direction, rise: Int) -> Int:
    """How sure the rise of the packet that brought the first byte of a direction's current frame is: a `Rise`."""
    clock = direction.clock
    if direction.isn != NULL or connection.same_host == 1 or clock.begun == 0 or clock.tick == OFF:
        return Rise.KNOWN
    if clock.settled_at == 0 or direction.first < clock.settled_at:
        return Rise.UNKNOWN
    drifted = clock.tick + SLACK_NS + FREE_PPM * (SETTLED_NS // MILLION)
    return Rise.BOUND if 0 < rise <= drifted and clock.drift_time < SETTLED_NS else Rise.KNOWN


@part
def _note_stamp(packet: Segment, direction: Direction) -> None:
    """Remembers a packet's timestamp."""
    stamp = stamp_of(packet)
    before = (direction.stamp_turn - 1) % STAMPS
    if packet.stamp == 0 or packet.flags & RST or direction.stamps[before] == stamp:
        return
    direction.stamps[direction.stamp_turn] = stamp
    direction.stamp_turn = (direction.stamp_turn + 1) % STAMPS


@part
def echoes_unseen(packet: Segment, direction: Direction) -> bool:
    """Whether a packet echoes a timestamp of the other direction (`direction`) that is later than one of its latest and
    none of them. Then a packet of that direction arrived, and was not captured (RFC 7323, section 4.3)."""
    echo = packet.stamp >> STAMP_BITS
    if echo == 0:
        return False
    later = False
    for q in range(STAMPS):
        if direction.stamps[q] == 0:
            continue
        apart = (echo + 1 - direction.stamps[q]) & ECHO_MASK
        if apart == 0:
            return False
        later |= apart < (ECHO_MASK + 1) // 2
    return later


@part
def echoes_latest(packet: Segment, direction: Direction) -> bool:
    """Whether a packet echoes the timestamp of the other direction's (`direction`) latest packet."""
    echo = packet.stamp >> STAMP_BITS
    return echo != 0 and echo + 1 == direction.stamps[(direction.stamp_turn - 1) % STAMPS]


@part
def note_delay(packet: Segment, connection: Connection, direction: Direction) -> None:
    """Sets `rise` of a direction by one of its packets."""
    direction.rise = 0
    _note_stamp(packet, direction)
    if packet.stamp == 0 or packet.time == 0 or packet.flags & (SYN | RST) or connection.same_host == 1:
        return
    if direction.clock.tick == OFF:
        return
    rise = _advance(direction.clock, packet.time, (packet.stamp & STAMP_MASK) - 1)
    other = connection.directions[1 - direction.side].clock
    apart = rise - other.over
    direction.clock.over = rise
    if rise > 0 and (other.over == 0 or abs(apart) > other.tick + SLACK_NS):  # else the capture's own clock was set
        direction.rise = rise


@part
def _begin(clock: Clock, time: Int, stamp: Int) -> None:
    clock.begun = 1
    clock.first_time = time
    clock.first_stamp = stamp
    clock.stamp = 0


@part
def _advance(clock: Clock, time: Int, stamp: Int) -> Int:
    """The delay above the least of a packet, ns: 0 within what tick and clocks explain, or unknown."""
    if clock.begun == 0:
        _begin(clock, time, stamp)
        return 0
    step = (stamp - clock.first_stamp - clock.stamp) & 0xFFFFFFFF
    if step > 0x7FFFFFFF:
        step -= 1 << 32
    now = clock.stamp + step
    clock.stamp = max(clock.stamp, now)
    age = time - clock.first_time
    if clock.tick == 0:
        if age < LEARN_NS:
            return 0
        tick = _tick_of(age, now)
        if tick == OFF and age < 4 * LEARN_NS:
            return 0
        clock.tick = tick
        clock.base = age - now * tick
        clock.base_time = time
        _open_window(clock, time, clock.base)
        clock.minimum_before = NULL
        return 0
    over = _above_floor(clock, time, age - now * clock.tick)
    return _level(clock, over) if over > 0 else 0


@part
def _open_window(clock: Clock, time: Int, delay: Int) -> None:
    clock.window_since = time
    clock.minimum = delay
    clock.minimum_time = time
    clock.count = 1


@part
def _drift(clock: Clock, age: Int) -> Int:
    """The drift of the clocks in so much time, ns, 0 while it is not known."""
    if clock.drift_time < SETTLED_NS:
        return 0
    return int(clock.drift / clock.drift_time * age)


@part
def _allowed(clock: Clock, age: Int) -> Int:
    """The largest difference that clocks explain after so much time, ns."""
    ppm = KNOWN_PPM if clock.drift_time >= SETTLED_NS else FREE_PPM
    return ppm * (age // MILLION) if clock.raised == 0 else 0


@part
def _above_floor(clock: Clock, time: Int, delay: Int) -> Int:
    """How much a delay is above the floor beyond what tick and clocks explain: all of it, or 0."""
    line = clock.base + _drift(clock, time - clock.base_time)
    if delay <= line:
        clock.base = delay
        clock.base_time = time
        clock.raised = 0
        line = delay
    if clock.count == 0 or delay < clock.minimum:
        clock.minimum = delay
        clock.minimum_time = time
    clock.count += 1
    if clock.settled_at == 0 and clock.count >= ENOUGH:
        clock.settled_at = time
    if time - clock.window_since >= WINDOW_NS and clock.count >= ENOUGH:
        _close_window(clock, time)
    over = delay - line
    if over <= clock.tick + max(SLACK_NS, clock.tick // 2) + _allowed(clock, time - clock.base_time):
        clock.level = 0
        clock.above = 0
        return 0
    return over


@part
def _close_window(clock: Clock, time: Int) -> None:
    """Learns drift from the window's minimum, and moves the floor there where clocks explain that."""
    if clock.minimum_before != NULL:
        apart = clock.minimum - clock.minimum_before
        between = clock.minimum_time - clock.time_before
        if abs(apart) <= CLOCK_PPM * (between // MILLION) + clock.tick // 4:
            clock.drift += apart
            clock.drift_time += between
    clock.minimum_before = clock.minimum
    clock.time_before = clock.minimum_time
    age = clock.minimum_time - clock.base_time
    if clock.minimum - clock.base - _drift(clock, age) <= clock.tick // 4 + _allowed(clock, age):
        clock.base = clock.minimum
        clock.base_time = clock.minimum_time
        clock.raised = 0
    else:
        clock.raised = 1
    clock.window_since = time
    clock.count = 0


@part
def _level(clock: Clock, over: Int) -> Int:
    """The rise that a packet so far above the floor tells: the level that it confirms, or its own."""
    if clock.level > 0 and over <= clock.level + clock.tick + SLACK_NS // 5:
        clock.level = min(clock.level, over)
        clock.above = 0
        return clock.level
    clock.least = over if clock.above == 0 else min(clock.least, over)
    clock.above += 1
    if clock.above >= FEW:
        clock.level = clock.least
        clock.above = 0
    return over - clock.tick // 2
