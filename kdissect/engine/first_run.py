"""The first run ever compiles its kernels in two processes.

What a run needs first and longest, the stream kernels, is compiled by the process that runs. Meanwhile a second one
(`python -m kdissect.engine.first_run`) compiles what comes behind them, decoding and analysis, for the cache.
Nothing depends on it: what is not there in time is compiled where it is needed.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

MARK = "KDISSECT_AHEAD"
"""Set in the environment of the second process, so that it starts no third."""
_started: list[subprocess.Popen[bytes]] = []
"""Held, because Python warns of a process whose object goes while it runs."""


def begin() -> None:
    """Start the second process, if kernels were not compiled before and there is a core for it."""
    from kdissect.kernels.kernel import compiled_before

    if _started or os.environ.get(MARK) or (os.cpu_count() or 1) < 2 or not sys.executable or compiled_before():
        return
    try:
        second = subprocess.Popen(
            [sys.executable, "-m", "kdissect.engine.first_run"],
            env={**os.environ, MARK: "1"}, cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    except OSError:
        return
    _started.append(second)


def analyse() -> None:
    """One Fetch through the analysis."""
    import pyarrow as pa

    from kdissect.analysis.stage import Stage
    from kdissect.tables.block import KEYS
    from kdissect.tables.declaration import SCHEMAS

    values = {
        "exchange_id": "0000000000000000:0", "broker": "1", "client_id": "", "api_key": 1, "api_version": 12,
        "request_last_at": 1, "response_first_at": 2, "request_session_id": 0, "session_epoch": 0,
        "response_session_id": 1, "error_code": 0, "throttle_ms": 1.0, "queued_ms": 0.0, "broker_ms": 1.0,
        "topic": "", "partition": 0, "in_request": True, "in_response": True, "forgotten": False, "high_watermark": 1,
    }  # fmt: skip
    stage = Stage(dict.fromkeys(("exchanges", "fetches", "fetch_sessions", "session_partitions")))
    tables = {}
    for name in ("exchanges", "fetches", "fetch_partitions"):
        schema = pa.schema([SCHEMAS[name].field(column) for column in sorted(stage.tables[name])])
        table = pa.Table.from_pylist([{field.name: values.get(field.name) for field in schema}], schema)
        for key in KEYS:
            table = table.append_column(key, pa.array([0], pa.int64()))
        tables[name] = table
    stage.feed(tables)
    stage.finish()


def decode() -> None:
    """One body through the decoder, an ApiVersions response, and no record batch through what finds them."""
    import numpy as np

    from kdissect.kafka.exchanges.messages import Decoder
    from kdissect.kafka.recordsets.batches import walk

    decoder = Decoder({(18, 1): None})
    body = np.zeros(6, np.uint8)
    program = np.array([decoder.table[18, 0, 1]], np.int32)
    begin, end = np.array([0], np.int64), np.array([len(body)], np.int64)
    decoder.decode(body, begin, end, program)
    walk(body, begin, begin)


if __name__ == "__main__":
    decode()
    analyse()
