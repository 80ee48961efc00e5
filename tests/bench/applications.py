"""What an application does that consumes and produces with Java's clients, over four connections."""

from __future__ import annotations

from tests.bench import java_frames as f
from tests.bench.frames import batch
from tests.bench.packets import Cycle
from tests.bench.templates import Template, digits, int32, int64

READER, OTHER_READER, COORDINATOR, PRODUCER = range(4)
"""Its connections: of two consumers that fetch, of the first one to its group's coordinator, and of a producer."""
PARTITIONS, BUSY = 8, 4
"""Of a consumer's fetch session, and how many of them ever get records."""
RECORDS = [b"an event of forty bytes, as small as any"]
"""Values of a batch that is produced and fetched."""
BEGIN = 1000
"""Offset of the first record of each partition."""
STEPS = BUSY
"""Of a turn: in each one fetch of a consumer waits in vain, and the next gets the records of one partition."""
ACK_US = 100
"""After which TCP acknowledges a request that is not answered yet: at once where a connection was idle (Linux)."""
WAIT_US, IDLE_US, APPEND_US, ANSWER_US = f.MAX_WAIT_MS * 1000 - ACK_US, 40_000, 2_000, 500
"""What passes from there until a fetch without records is answered, or until records come; what replication takes; and
what other answers take."""
SESSION_STEP = 1_700_003
"""Between the session ids of two applications, which a broker draws at random."""
TOPIC = f.Topic(b"orders-" + digits(), b"\x5a\x17kdissect-b" + int32(1, copy=1))
BEFORE, AFTER = int64(BEGIN, turn=len(RECORDS)), int64(BEGIN + len(RECORDS), turn=len(RECORDS))
"""Where a partition ends before it gets the records of a turn, and after."""
GROUP = b"billing-" + digits()


def application(fetch: int = 12) -> Cycle:
    """A turn: each consumer fetches eight times in its session, of which every second fetch waits in vain.

    Fetch sessions are those of Java's consumer (KIP-227): one full fetch with epoch 0 when the connection opens, then
    epochs 1, 2, ... A request names a partition only where its offset has moved since the request before, an answer
    only what has records; the other partitions are implied. `fetch` is the version of Fetch, 11 to 16; with
    11 the others are of the clients that had it, which tshark 4.0 knows all.
    """
    produce, metadata = (9, 12) if fetch >= f.FETCH_FLEXIBLE else (8, 9)
    producer = f.Client(b"producer-billing-" + digits())
    readers = [f.Client(b"consumer-billing-" + digits() + b"-%d" % n) for n in (1, 2)]
    member = readers[0].id + b"-3f0c1d3e-7a57-4b0a-9a5a-6f2c6c1f3b11"
    sessions = [int32(71 + n, copy=SESSION_STEP) for n in (READER, OTHER_READER)]
    cycle = Cycle()
    for connection, client in enumerate((*readers, readers[0], producer)):
        cycle.open(f.api_versions_request(client), f.api_versions_response(), connection, ANSWER_US)
        if connection != COORDINATOR:
            asked = f.metadata_request(metadata, client, TOPIC), f.metadata_response(metadata, TOPIC, 2 * PARTITIONS)
            cycle.open(*asked, connection, ANSWER_US)
    for reader, client in enumerate(readers):
        mine = range(reader * PARTITIONS, (reader + 1) * PARTITIONS)
        begun = int64(BEGIN)
        full = f.fetch_request(fetch, client, int32(0), int32(0), TOPIC, [(p, begun) for p in mine])
        answer = f.fetch_response(fetch, sessions[reader], TOPIC, [(p, begun, b"") for p in mine])
        cycle.open(full, answer, reader, WAIT_US)

    def wait() -> None:
        for reader in range(len(readers)):
            cycle.acknowledge(1, reader, 0 if reader else ACK_US)

    def ask(number: int, moved: list[tuple[int, Template]]) -> None:
        for reader, client in enumerate(readers):
            epoch = int32(1 + number, turn=2 * STEPS)
            places = [(reader * PARTITIONS + partition, offset) for partition, offset in moved]
            cycle.ask(f.fetch_request(fetch, client, sessions[reader], epoch, TOPIC, places), connection=reader)

    def answer_with(partitions: list[int], after_us: int) -> None:
        for reader in range(len(readers)):
            rows = [(reader * PARTITIONS + partition, AFTER, _records()) for partition in partitions]
            response = f.fetch_response(fetch, sessions[reader], TOPIC, rows)
            cycle.answer(response, connection=reader, after_us=0 if reader else after_us)

    for step in range(STEPS):
        # The turn's first request names the partition of the last answer of the turn before.
        ask(2 * step, [(step - 1, AFTER) if step else (BUSY - 1, BEFORE)])
        wait()
        answer_with([], WAIT_US)
        ask(2 * step + 1, [])
        wait()
        written = [step, PARTITIONS + step]
        produced = f.produce_request(produce, producer, TOPIC, [(partition, _records()) for partition in written])
        cycle.ask(produced, connection=PRODUCER, after_us=IDLE_US)
        answer_with([step], APPEND_US)
        appended = f.produce_response(produce, TOPIC, [(partition, BEFORE) for partition in written])
        cycle.answer(appended, connection=PRODUCER)
    cycle.ask(f.heartbeat_request(readers[0], GROUP, member), connection=COORDINATOR)
    cycle.answer(f.heartbeat_response(), connection=COORDINATOR, after_us=ANSWER_US)
    done = [(partition, AFTER) for partition in range(BUSY)]
    cycle.ask(f.commit_request(readers[0], GROUP, member, TOPIC, done), connection=COORDINATOR)
    cycle.answer(f.commit_response(TOPIC, range(BUSY)), connection=COORDINATOR, after_us=ANSWER_US)
    return cycle


def _records() -> Template:
    """A batch where its partition ends."""
    return f.records_at(BEFORE, batch(RECORDS))
