"""The content of the first screen: named tuples, a docstring under each field that its name does not explain."""

from datetime import datetime
from typing import Any, NamedTuple


class LatencyLine(NamedTuple):
    """One line of the latency block: the exchanges of an API (or client, broker, API and version)."""

    name: str
    exchanges: int
    versions: list[int]
    errors: int
    answered: int
    """Exchanges with a latency."""
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None
    slowest: str | None
    """Id of the exchange with the largest latency that was no long poll."""
    slowest_ms: float | None
    """Its latency."""
    long_polls: int
    """Exchanges whose `hold` is timeout: the broker waited because the client asked it to."""
    judged: int
    """Exchanges of which it is known whether they failed: their answers were read, or none was asked for."""
    cluster: str | None = None
    """Of a broker, as far as it is known."""


class ErrorLine(NamedTuple):
    """One error of one API (or of another group of the latency block)."""

    error: str
    name: str
    count: int  # type: ignore[assignment]  # instead of a tuple's method of that name
    cluster: str | None = None
    """As in `LatencyLine`."""


class ClientLine(NamedTuple):
    """One client id: its software, its addresses, what it did."""

    client_id: str | None
    software: str | None
    version: str | None
    groups: list[str]
    addresses: list[str]
    connections: int
    exchanges: int
    errors: int
    judged: int
    """Exchanges of which it is known whether they failed."""
    lost_ms: float
    """Time in answers of 100 ms and more that nobody had asked to wait for, without what they lay behind others."""
    slowest_ms: float | None
    """The longest of its answers, long polls and waiting in a queue left out."""
    slowest_at: datetime | None
    """When that request began."""
    broker_itself: bool
    """Its client id is one that brokers use among themselves: a follower, a controller."""


class Pace(NamedTuple):
    """Exchanges over time, in buckets of one width from the first that holds any to the last."""

    begin_us: int
    """Where the first bucket begins, in microseconds since the epoch."""
    width_ms: float
    exchanges: list[int]
    """Begun in each bucket."""
    slowest_ms: list[float]
    """The longest of each bucket that did not wait because it was asked to; 0 without any."""


class BrokerLine(NamedTuple):
    """One broker: where it listens, and how many connections and exchanges reached it."""

    broker: str
    addresses: list[str]
    connections: int
    exchanges: int
    cluster: str | None = None


class TopicLine(NamedTuple):
    """One topic: who writes and reads it. Fetches between brokers do not count."""

    topic: str
    """Its name, or its id where no name is known."""
    partitions: int
    """Seen in requests or answers."""
    written_bytes: int | None
    """Of record batches on the wire; None where nobody writes."""
    writers: list[str | None]
    """Client ids, who wrote most first."""
    read_bytes: int | None
    readers: list[str | None]
    """Client ids, who is furthest behind first."""
    behind: int | None
    """Records between the fetch position and the high watermark that the first of `readers` was told last, over its
    partitions; None where no answer told."""
    cluster: str | None = None
    """Where several are known."""


class DeliveryLine(NamedTuple):
    """The waits of the record batches of one topic on their way to one reader; followers have no line."""

    topic: str | None
    """Its name, or its id where no name is known."""
    reader: str | None
    """The group, else the client id."""
    deliveries: int
    p50_ms: float
    """From the Produce request's first byte to the last byte of the answer that gave it to the reader."""
    p99_ms: float
    max_ms: float
    waited_for: str
    """What most of the time of all of them was spent on, as in the table `deliveries`; the producer's buffer counts."""
    waited_share: float
    """Its share of that time."""
    cluster: str | None = None


class SessionLine(NamedTuple):
    """Fetch sessions of one broker."""

    broker: str
    sessions: int
    created: int
    """Whose creation was captured."""
    evicted: int
    open: int
    """Still open when the capture ended."""
    peak: int
    """Most at the same time."""
    requests: int
    cluster: str | None = None


class ProblemLine(NamedTuple):
    """Problems of one kind: rows, bytes affected (None where none says), one of them in words."""

    kind: str
    count: int  # type: ignore[assignment]  # instead of a tuple's method of that name
    bytes: int | None
    example: str


class Summary(NamedTuple):
    """The first screen as data. Times are aware datetimes in UTC, durations milliseconds, None is unknown."""

    captures: list[str]
    started_at: datetime | None
    ended_at: datetime | None
    packets: int | None
    bytes: int | None
    """Bytes of all packets as they were on the wire."""
    connections: int
    kafka_connections: int
    protocols: dict[str, int]
    """Connections that are not Kafka, by what they speak (`unknown` where that is not known)."""
    silent: int
    """Connections that carried no byte: refused, or opened for nothing. Not among `protocols`."""
    statuses: dict[str, int]
    """Exchanges by status."""
    by: str
    latencies: list[LatencyLine]
    errors: list[ErrorLine]
    clients: list[ClientLine]
    brokers: list[BrokerLine]
    sessions: list[SessionLine]
    findings: list[dict[str, Any]]
    """Rows of `findings`, worst first."""
    findings_of: int | None
    """Exchanges that findings come from, the first ones, where the capture has more; None for all."""
    quality: list[dict[str, Any]]
    """Rows of `capture_quality`."""
    problems: list[ProblemLine]
    """What was not read, or is not right."""
    explained: list[ProblemLine]
    """Rows of `problems` that nothing is wrong with: a late start or a broker's down-conversion explains them."""
    pace: Pace | None
    """Exchanges over time; None without any."""
    id_digits: int
    """How many digits of a connection id tell all connections of the capture apart (at least 4)."""
    both_ends: list[dict[str, Any]]
    """Rows of `clock_offsets`: captures that saw the same exchanges, each of which counts once here."""
    budget: dict[str, Any] | None
    """The row of `time_budget` of the client that most is wrong with (`spending`); None where nothing is, and of
    captures too large for it."""
    topics: list[TopicLine] | None
    """Topics that clients write and read, those with most bytes first; None where they were not counted."""
    deliveries: list[DeliveryLine]
    """By topic and reader, the slowest 99th percentile first."""
    deliveries_of: int | None
    """Record batches that deliveries come from, the first ones, where the capture has more; None for all."""

    @property
    def judged(self) -> int:
        """Exchanges that are known to have failed or not."""
        return sum(line.judged for line in self.latencies)

    @property
    def exchanges(self) -> int:
        """Number of exchanges, orphan responses included."""
        return sum(self.statuses.values())

    def short_id(self, exchange_id: str) -> str:
        """An exchange id with as many digits of its connection as are needed; every command takes it."""
        connection, _, ordinal = exchange_id.partition(":")
        return f"{connection[: self.id_digits]}:{ordinal}"

    def as_dict(self) -> dict[str, Any]:
        """The summary as nested dicts and lists."""
        return {name: _plain(value) for name, value in self._asdict().items()}


def _plain(value: Any) -> Any:
    """Lines as dicts, in a list of them too; a copy of a dict; anything else as it is."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return dict(value)
    return value._asdict() if isinstance(value, tuple) and hasattr(value, "_asdict") else value
