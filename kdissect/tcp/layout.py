"""What is remembered between packets: one heap of int64 words.

The stream kernels share one array `M` (few arguments compile and call much faster than many). It begins with control
words and small tables at fixed addresses, then room for output rows; behind them come the structs, which are known by
the address of their first word: `M[c + C_LAST]` is a word of the connection at `c`. A connection (C_*) is followed by
its two directions (D_*; the first is from the endpoint that sorts first). Nodes (N_*) are pieces of the frame that is
being received, of a window that is searched for a frame, and segments that arrived ahead of a hole. Free structs are
chained through their first word. The heap grows at its end only, so addresses stay.

Positions are stream positions: sequence numbers unwrapped to 64 bits. `at` is a logical input offset (see
`kdissect.capture`); HOLE and CUT stand there for bytes that were never captured and for bytes that a snap length cut
off.
"""

from __future__ import annotations

NULL = -(2**63)
"""No time known."""

HOLE = -1
CUT = -2

# ---- connection
C_FLOW = 0
C_FIRST = 1
"""Time of the first packet, ns."""
C_SEQUENCE = 2
"""Sequence number of the first packet, with its direction in bit 32."""
C_LAST = 3
C_START_SEEN = 4
C_END = 5
"""END_* below."""
C_CLIENT = 6
"""The direction that carries requests, -1 unknown."""
C_KAFKA = 7
"""1 once a frame was confirmed, -1 once it was ruled out, 0 undecided."""
C_PACKETS = 8
C_REQUEST_HEAD = 9
C_REQUEST_TAIL = 10
C_REQUESTS_OPEN = 11
C_REQUESTS = 12
"""Ordinal of the last request."""
C_ORPHANS = 13
C_ANSWERED_LAST = 14
"""When the last byte of the latest response arrived."""
C_SASL = 15
"""SASL_* below."""
C_SYN = 16
C_RTT = 17
C_CLIENT_ID = 18
C_PROBLEMS = 19
C_EXCHANGES = 20
C_NUMBER = 21
"""Number of the connection in its capture, in order of first packets."""
C_HELD_HEAD = 22
C_HELD = 23
C_FIRST_PACKET = 24
C_TOKENS = 25
C_DUPLICATES = 26
C_NEWS = 27
"""1 when its endpoints' roles are not told to the host yet."""
C_SEALED = 28
"""1 when it is TLS and its bytes go to the host, which brings plaintext back."""
C_UNORDERED = 29
"""0 while the ids of the requests that wait ascend."""
C_WIDTH = 30

END_OPEN = 0
END_FIN = 1
END_RST = 2
END_REPLACED = 3
"""The same 4-tuple began a new connection."""
END_IDLE = 4
"""The same 4-tuple was used again after it had ended, without a SYN captured."""

SASL_NONE = 0
SASL_ASKED = 1
"""SaslHandshake v0 was sent."""
SASL_BARE = 2
"""Its answer arrived: tokens follow as bare length-prefixed frames."""

# ---- direction
D_NEXT = 0
D_STARTED = 1
"""0 nothing seen, 1 the position of the first data is a guess, 2 known from a SYN."""
D_MODE = 2
D_NEED = 3
"""Body bytes of the current frame still to come; -1 between frames."""
D_SIZE = 4
D_FIRST = 5
D_LATEST = 6
D_PACKET = 7
D_PREFIX_BYTES = 8
D_PREFIX = 9
D_AT = 10
"""The only piece so far of the current frame (or -1 when there are nodes, or none)."""
D_LENGTH = 11
D_HEAD = 12
D_TAIL = 13
D_MISSING = 14
"""Bytes of the current frame in holes."""
D_CUT = 15
"""Bytes of the current frame cut off by the snap length."""
D_AHEAD_HEAD = 16
D_AHEAD = 17
"""Segments ahead of the hole."""
D_AHEAD_BYTES = 18
D_ACKED = 19
"""Highest position of this direction that the other side acknowledged, NULL unknown."""
D_FIN = 20
D_HOLE_SINCE = 21
"""Value of C_PACKETS when D_HOLE_ACKED was noted, -1 while no hole is known to be acknowledged."""
D_RETRANSMITTED = 22
D_OUT_OF_ORDER = 23
D_MISSING_TOTAL = 24
D_PACKETS = 25
D_BYTES = 26
D_ZERO_SINCE = 27
D_ZERO_TOTAL = 28
D_WINDOW = 29
"""Bytes in the window that is searched for a frame."""
D_SEARCHED = 30
"""Offset in the window before which no frame can begin."""
D_BUDGET = 31
"""What trials may still cost in this search."""
D_WILD = 32
D_TIMED_END = 33
D_TIMED_AT = 34
D_ACK_RTT = 35
D_FRAMES = 36
D_BEGIN16A = 37
"""The first eight bytes of the direction, to name protocols by."""
D_BEGIN16B = 38
D_BEGUN = 39
"""1 when its very first bytes are there, or may still come."""
D_CUT_TOTAL = 40
D_SKIPPED = 41
D_HIGHEST = 42
D_HIGHEST_TIME = 43
D_RECENT = 44
"""Place in the ring of recent packets, which tells duplicates."""
D_AHEAD_TAIL = 45
D_ISN = 46
"""Sequence number of the SYN, NULL unknown."""
D_SIDE = 47
"""0 or 1: which direction of the connection this is."""
D_OTHER = 48
"""Address of the other direction."""
D_LOST = 49
"""Value of C_PACKETS when bytes of this direction were last given up, -1 never."""
D_UNSETTLED = 50
"""1 while the first bytes may still come: the stream was met in its middle, and captures reorder."""
D_VIEW = 51
"""Where the packet was seen that last brought the direction further (VIEW of its row)."""
D_IDENT = 52
"""The latest IP id of the direction, 16 bits; above it how often in a row ids went up a little, at most ID_STEPS."""
D_HOLE_ACKED = 53
"""What was acknowledged then: holes before it are given up together."""
D_TRIED = 54
"""Bytes of the window when it was last searched."""
D_RING = 55
"""The ring of recent packets, a word each: 40 bits of what tells the packet from others, 24 bits of time in units of
2**TICK ns (they come round after 18 minutes; where IP ids do not count up, a packet is looked for that was seen within
0.1 s)."""
D_WIDTH = D_RING + 48
TICK = 16

MODE_SEARCH = 0
"""The place of the next frame is not known (a stream begins like this too)."""
MODE_FRAMES = 1
MODE_IGNORED = 2

RECENT = 48
"""Packets remembered per direction to recognise a second copy: both copies of a burst arrive interleaved, within it,
or one burst after the other; the initial window of Linux is 10 segments, and 44 is what offload makes of 64 KiB."""
CONNECTION_WIDTH = C_WIDTH + 2 * D_WIDTH

# ---- nodes
N_NEXT = 0
N_AT = 1
N_LENGTH = 2
N_TIME = 3
N_PACKET = 4
N_POSITION = 5
"""Stream position (segments that wait behind a hole), or 1 where a segment begins (pieces of a search window)."""
N_WIDTH = 6

# ---- control words
K_NODE_FREE = 0
"""Head of the free list."""
K_NODES_LEFT = 1
K_CONNECTION_FREE = 3
K_NUMBER = 4
K_RESUME = 5
K_PHASE = 6
K_PROBLEMS = 7
K_OUT = 8
K_REQUEST_FREE = 9
K_REQUESTS_LEFT = 10
K_CLIENT_IDS = 11
K_CLIENT_BYTES = 12
K_ENDED = 13
K_CONNECTIONS_LEFT = 14
K_FINAL = 2
"""RUNNING, or what is being finished."""
K_SLOT = 15
"""Address of the slot that is filled now."""
K_SEALED = 16
"""Rows of sealed bytes for the host."""
K_SEALING = 17
"""1 when the host takes them."""
K_WIDTH = 18

RUNNING = 0
ENDED = 1
"""A connection is finished that ended."""
CAPTURE_ENDED = 2
"""A connection is finished because the capture ended."""
DRAINING = -1
"""Before either: what waits behind holes is taken, while searches still hope for more."""

# ---- problems
P_KIND = 0
P_CONNECTION = 1
P_TIME = 2
P_PACKET = 3
P_DIRECTION = 4
P_POSITION = 5
P_BYTES = 6
P_DETAIL = 7
P_WIDTH = 8

# ---- the heap
SLOTS = 32
"""Copy of the window's slots: MAX_SLOTS triples."""
MAX_SLOTS = 64
OUT = SLOTS + 3 * MAX_SLOTS
"""What comes next in a stream: at, captured, wire, time, packet."""
HEAP = OUT + 16
"""First word that layers above may use."""
