"""Connections that begin with TLS: their bytes go to the host as rows, plaintext comes back as if TCP had brought it.

A connection is sealed when a direction begins with a record that holds a ClientHello or a ServerHello. No Kafka frame
begins like that (it would be a frame of 352 MiB and more). From then on TCP's bytes, in order, become rows `Sealed`,
until the host rules the connection out by its `kafka`.
"""

from __future__ import annotations

from kdissect.kafka.streams.state import S_BASE, S_ROWS, SCRATCH, SEALED_WIDTH, sealed_at
from kdissect.kernels.kernel import part
from kdissect.kernels.structs import Bytes, Int, Words
from kdissect.tcp.assembly import give_node
from kdissect.tcp.layout import CONTROL, HOLE, MODES, Connection, Direction, Sight, control_at, node_at

HELLO = 6
"""Bytes that tell a hello: a record's header and the message's type."""


@part
def begins_sealed(M: Words, A: Bytes, connection: Connection, direction: Direction, n: Int) -> bool:
    """Whether the window of a direction (at A[SCRATCH:n]) is the beginning of TLS and the host takes it."""
    if control_at(M, CONTROL).sealing == 0 or connection.sealed != 0 or connection.kafka != 0 or direction.skipped > 0:
        return False
    if n - SCRATCH < HELLO or A[SCRATCH] != 0x16 or A[SCRATCH + 1] != 3 or A[SCRATCH + 2] > 4:
        return False
    return A[SCRATCH + 3] < 0x49 and (A[SCRATCH + 5] == 1 or A[SCRATCH + 5] == 2)


@part
def looks_sealed(A: Bytes, connection: Connection, direction: Direction, n: Int) -> bool:
    """Whether a stream that was met in its middle seems to be TLS, which is only good for a name."""
    if connection.kafka != 0 or direction.begun != 0 or direction.skipped > 0 or n - SCRATCH < HELLO:
        return False
    return 0x14 <= A[SCRATCH] <= 0x17 and A[SCRATCH + 1] == 3 and A[SCRATCH + 2] <= 4 and A[SCRATCH + 3] < 0x49


@part
def seal_row(
    M: Words, connection: Connection, direction: Direction, at: Int, captured: Int, wire: Int, time: Int, packet: Int
) -> None:
    """Adds a row for the next bytes of a sealed direction; `at` HOLE: bytes that were never captured."""
    if connection.kafka < 0:
        return
    control = control_at(M, CONTROL)
    if control.sealed >= S_ROWS:
        connection.kafka = -1
        return
    row = sealed_at(M, S_BASE + control.sealed * SEALED_WIDTH)
    control.sealed += 1
    row.connection = connection.place
    row.number = connection.number
    row.direction = direction.side
    row.at = at
    row.length = captured
    row.wire = wire
    row.time = time
    row.packet = packet
    row.packets = connection.packets
    for side in range(2):
        row.floors[side] = connection.directions[side].floor
        row.floor_kinds[side] = connection.directions[side].floor_kind


@part
def seal(M: Words, connection: Connection) -> None:
    """Seals the connection from here on: both windows become rows, and plaintext will start from zero."""
    connection.sealed = 1
    first = max(connection.client, 0)
    for q in range(2):
        direction = connection.directions[first ^ q]
        piece = direction.head
        while piece >= 0:
            node = node_at(M, piece)
            following = node.next
            captured = node.length if node.at >= 0 else 0
            seal_row(M, connection, direction, max(node.at, HOLE), captured, node.length, node.time, node.packet)
            give_node(M, piece)
            piece = following
        direction.head = -1
        direction.tail = -1
        direction.window = 0
        direction.searched = 0
        direction.skipped = 0
        direction.begin16a = 0
        direction.begin16b = 0
        direction.begun = 1
        direction.mode = MODES[direction.mode, Sight.LOST]
