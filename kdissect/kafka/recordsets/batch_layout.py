"""Record batches as rows of numbers: the columns that the kernels fill, and what may be wrong with a batch.

A batch is a magic-2 batch (KIP-98), a compressed wrapper of magic 0 or
1, or a run of consecutive plain messages of one magic. `NULL` means not known. Timestamps are Kafka's own milliseconds,
-1 for none.
"""

from __future__ import annotations

from kdissect.kernels.structs import offsets, struct, view, width

NULL = -(2**63)
"""Not known, or not a thing that this format has."""


@struct
class Batch:
    """A row of batches; fields are NULL where not known."""

    owner: int
    """Record set: an index into what `walk` was given."""
    at: int
    """Position of the batch in the buffer."""
    length: int
    """Bytes of it that are there."""
    wire: int
    """Bytes of it on the wire: what its header says, within its record set."""
    magic: int
    """0, 1 or 2."""
    attributes: int
    """As they are; of a run those of the first message."""
    base_offset: int
    """Of a wrapper NULL until it is opened."""
    last_offset: int
    """Offset of its last record."""
    first_time: int
    """Timestamp of its first record."""
    max_time: int
    """Its largest timestamp."""
    producer_id: int
    """-1 for none."""
    producer_epoch: int
    """-1 for none."""
    base_sequence: int
    """Sequence number of its first record, -1 for none."""
    leader_epoch: int
    """-1 for none."""
    records: int
    """As the header says; of a wrapper NULL until it is opened."""
    crc: int
    """As the header says; of a run NULL."""
    kind: int
    """BATCH to DAMAGED."""
    cut: int
    """WHOLE to CUT_BY_CAPTURE."""
    problems: int
    """Bits of `PROBLEM_TEXTS`."""


batch_at = view(Batch)
WIDTH = width(Batch)
FIELDS = offsets(Batch)
"""The columns of such rows."""

BATCH, WRAPPER, RUN, STUB, PADDING, DAMAGED = range(6)
"""KIND: magic-2 batch; compressed wrapper; run of plain messages; a stub too short to tell; the filling of a
down-converted response (KIP-283); bytes that are no batch."""

WHOLE, CUT_BY_SENDER, CUT_BY_CAPTURE = range(3)
"""CUT: all there; the record set ends inside it (legal in Fetch responses); bytes that were not captured."""

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
"""Codec by attribute bits 0-2."""
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
CODEC_MASK = 7
LOG_APPEND_BIT, TRANSACTIONAL_BIT, CONTROL_BIT, DELETE_HORIZON_BIT = 8, 16, 32, 64
"""Attribute bits 3 (timestamp type: log append time), 4, 5 and 6 (KIP-534) of magic 2; magic 1 has bit 3."""

PREFIX = 12
"""Offset (int64) and length (int32), which every format starts with; the length counts what follows them."""
MAGIC_AT = 16
HEADER_V2 = 61
LEAST_LENGTH = 14
"""Smallest length of any message: magic 0 with a null key and a null value (LegacyRecord.RECORD_OVERHEAD_V0)."""
LEAST_LENGTH_V1 = 22
CRC_FROM_V2 = 21
"""The CRC-32C of magic 2 covers the attributes and all behind them."""
CRC_FROM_V1 = 16
"""The CRC-32 of magic 0 and 1 covers the magic byte and all behind it."""
LEAST_RECORD = 7
"""Smallest magic-2 record: length, attributes, two deltas, two lengths and the header count, a byte each."""

CONTROL_TYPES = (
    "abort", "commit", "leader_change", "snapshot_header", "snapshot_footer", "kraft_version", "kraft_voters",
)  # fmt: skip
"""Control records by the type in their key (ControlRecordType)."""

FIRST_MS = -62_135_596_800_000
LAST_MS = 253_402_300_799_999
"""Years 1-9999: what timestamps of most systems can hold."""

PROBLEM_TEXTS = (
    "padding of a down-converted response",
    "batch length below 14: the rest of the record set cannot be read",
    "magic byte outside 0-2: the rest of the record set cannot be read",
    "batch length too small for its header",
    "batch length reaches past the record set, yet its records end inside it",
    "unknown codec",
    "zstd in a format that does not have it",
    "unknown attribute bits",
    "record count does not fit the batch",
    "last offset below base offset",
    "checksum is wrong",
    "cannot be decompressed",
    "decompresses to more than its compressed bytes can explain: reading stopped there",
    "record length does not fit the batch",
    "fields do not fit their record",
    "record offset outside its batch",
    "bytes behind the last record",
    "control record without a known type",
    "compressed message inside a compressed message",
    "magic of inner messages differs from their wrapper's",
    "wrapper offset below its last inner offset",
    "timestamp outside years 1-9999",
    "record attributes are not zero",
    "a record too large to be shown: its key, value and headers are null",
)
"""What a bit of PROBLEMS means."""
(
    P_PADDING, P_LENGTH, P_MAGIC, P_SHORT, P_LONG, P_CODEC, P_ZSTD, P_BITS, P_COUNT, P_LAST_OFFSET, P_CRC,
    P_DECOMPRESS, P_BOMB, P_RECORD_LENGTH, P_RECORD, P_OFFSET, P_TRAILING, P_CONTROL, P_NESTED, P_INNER_MAGIC,
    P_WRAPPER_OFFSET, P_TIME, P_RECORD_BITS, P_GIANT,
) = (1 << _bit for _bit in range(24))  # fmt: skip
