import numpy as np
import pyarrow as pa
import pytest

import kdissect
from kdissect.kafka.recordsets.batches import walk
from kdissect.tables.builder import TableBuilder
from kdissect.tables.recordsets import fetch_batches, record_problems, record_rows, record_sets
from tests.conftest import ROOT
from tests.tables.made import START, completed, connections


def message(offset, value):
    """An uncompressed message of magic 0, checksum left zero."""
    body = b"\0\0\0\0\0\0" + (-1).to_bytes(4, "big", signed=True) + len(value).to_bytes(4, "big") + value
    return offset.to_bytes(8, "big") + len(body).to_bytes(4, "big") + body


def test_batches_know_their_exchange_and_partition():
    one, two = message(5, b"abc") + message(6, b"d"), message(9, b"")
    buffer = np.frombuffer(b"....." + one + two + b"\xff" * 30, np.uint8)
    asked = {
        "name": "p",
        "topic_id": None,
        "partition_data": [{"index": 4, "records_bytes": len(two), "records_at": 5 + len(one)}],
    }
    given = {
        "topic": "f",
        "topic_id": None,
        "partitions": [
            {"partition_index": 0, "records_bytes": None, "records_at": -1},
            {"partition_index": 1, "records_bytes": len(one), "records_at": 5},
            {"partition_index": 2, "records_bytes": 30, "records_at": 5 + len(one) + len(two)},
        ],
    }
    builder = TableBuilder(
        connections(), {"record_batches": ["exchange_id", "topic", "partition", "base_offset", "records"]}
    )
    block = builder.block(
        completed(
            {"api_key": 1, "request_first": START, "response_last": START + 5000},
            {"api_key": 0, "n": 1, "request_first": START + 9000},
            messages={(0, 0): {1: {"topic_data": [asked]}}, (1, 1): {0: {"responses": [given]}}},
        )
    )
    sets = record_sets(block)
    assert sets.row.tolist() == [0, 0, 1]
    assert sets.partition.tolist() == [1, 2, 4]
    assert sets.partial_is_legal.tolist() == [True, True, False]
    found = walk(buffer, sets.at, sets.size)
    assert fetch_batches(block, sets, found).tolist()[:2] == [0, 1]
    raw = record_rows("record_batches", block, sets, found.table(), builder.working_columns("record_batches"))
    rows = [row for row in builder.finished("record_batches", [raw]).to_pylist() if row["partition"] != 2]
    assert rows == [
        {"exchange_id": "000000000000abc0:0", "topic": "f", "partition": 1, "base_offset": 5, "records": 2},
        {"exchange_id": "000000000000abc0:1", "topic": "p", "partition": 4, "base_offset": 9, "records": 1},
    ]
    problems = record_problems(block, sets, found)
    assert len(problems) >= 1
    assert problems.texts[0] == "f-2, byte 0, offset -1"
    assert problems.at[0] == START + 5000


def test_no_record_sets():
    builder = TableBuilder(connections(), {"record_batches": None})
    block = builder.block(completed({}))
    sets = record_sets(block)
    found = walk(np.zeros(0, np.uint8), sets.at, sets.size)
    raw = record_rows("record_batches", block, sets, found.table(), builder.working_columns("record_batches"))
    table = builder.finished("record_batches", [raw])
    assert table.num_rows == 0
    assert isinstance(table, pa.Table)


@pytest.mark.parametrize(("name", "producers"), [("k4_transactions.pcap", 2), ("stories/lossy_5_client.pcap.zst", 0)])
def test_what_is_passed_over_tells_nothing(name, producers):
    """Sets that are only watched for problems and producers, against those of which rows are made."""
    path = str(ROOT / "captures" / name)
    names = ["producers", "problems"]
    watched = kdissect.open(path).tables(names)
    walked = kdissect.open(path).tables([*names, "record_batches"])
    for one in names:
        assert watched[one].equals(walked[one])
    assert watched["producers"].num_rows >= producers
