"""What kafka-python and aiokafka encode, read by the walker and by the kernels: two more opinions beside kio's."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import Any

import numpy as np
import pytest

import kdissect
from kdissect.kafka.exchanges.messages import Decoder
from kdissect.schema.index import api_name
from tests.oracle import aiokafka_messages, kafka_python_messages
from tests.oracle.agreement import differences
from tests.oracle.aiokafka_messages import flat

pytestmark = pytest.mark.oracle

SIDES = ("request", "response")


@cache
def decoder() -> Decoder:
    return Decoder({(key, side): None for key in range(95) for side in (0, 1)})


def by_kernel(samples: list[Any]) -> list[dict[str, Any] | None]:
    """Each body as the kernels decode it, all in one call; None where they refuse it."""
    stream = np.frombuffer(b"".join(s.body for s in samples) + b"\0" * 8, np.uint8).copy()
    sizes = np.array([len(s.body) for s in samples], np.int64)
    end = np.cumsum(sizes)
    it = decoder()
    programs = np.array([it.table[s.key, s.version, SIDES.index(s.side)] for s in samples], np.int32)
    decoded = it.decode(stream, end - sizes, end, programs)
    rows: list[dict[str, Any] | None] = [None] * len(samples)
    for message in decoded.messages.values():
        for row, value in zip(message.rows.tolist(), message.batch.to_pylist(), strict=True):
            rows[row] = value
    return rows


def test_kafka_python() -> None:
    samples = list(kafka_python_messages.samples())
    assert len(samples) > 900
    assert len({(s.key, s.side, s.version) for s in samples}) >= 470
    wrong: dict[str, list[str]] = defaultdict(list)
    for sample, kernel in zip(samples, by_kernel(samples), strict=True):
        place = f"{sample.name} v{sample.version} {sample.side} {sample.kind}"
        walked = kdissect.decode(sample.body, api=sample.name, version=sample.version, direction=sample.side)
        wrong[f"{place}, walker"] += list(differences(sample.says, walked, sample.key, sample.side))
        if kernel is None:
            wrong[f"{place}, kernel"].append("refused")
        else:
            wrong[f"{place}, kernel"] += list(differences(sample.says, kernel, sample.key, sample.side))
    found = {place: texts for place, texts in wrong.items() if texts}
    assert not found, f"{len(found)}: " + "\n".join(f"{place}: {texts[0]}" for place, texts in list(found.items())[:15])


def test_aiokafka() -> None:
    samples = list(aiokafka_messages.samples())
    assert len(samples) > 190
    wrong = []
    for sample, kernel in zip(samples, by_kernel(samples), strict=True):
        api = api_name(sample.key)
        walked = kdissect.decode(sample.body, api=api, version=sample.version, direction=sample.side)
        for reader, row in (("walker", walked), ("kernel", kernel)):
            if row is None or not alike(sample.values, row):
                wrong.append(f"{api} v{sample.version} {sample.side}, {reader}: {sample.values} {row}"[:600])
    assert not wrong, f"{len(wrong)}: " + "\n".join(wrong[:8])


def alike(values: list[Any], row: dict[str, Any]) -> bool:
    """The same values in order. Records, secrets and values of made-up configurations are lengths with us; what a
    version lacks is null."""
    ours = [value for value in flat(list(leaves(row))) if value is not None]
    if len(ours) != len(values):
        return False
    return all(o == v or (isinstance(v, bytes | str) and o == len(v)) for o, v in zip(ours, values, strict=True))


def leaves(value: Any) -> Any:
    if isinstance(value, dict):
        for name, item in value.items():
            shown = value.get(name.removesuffix("_bytes")) is not None and name.endswith("_bytes")
            if name != "_tags" and not shown:  # a length beside the value itself
                yield from leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from leaves(item)
    else:
        yield value
