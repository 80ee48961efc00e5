"""Bytes that lie aside, in memory and in the file."""

from __future__ import annotations

import numpy as np
import pytest

from kdissect.kafka.streams.idle.byte_store import STORED, ByteStore


def piece(size: int, value: int) -> np.ndarray:
    return np.full(size, value, np.uint8)


def test_bytes_come_back_by_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """From memory and from the file, in any order."""
    monkeypatch.setattr("kdissect.kafka.streams.idle.byte_store.IN_MEMORY", 250)
    store = ByteStore()
    at = np.array([store.append(piece(100, value)) for value in range(6)])
    assert at.min() >= STORED
    asked = np.array([at[5] + 10, at[0], at[3] + 99])
    found = store.get(asked, np.array([20, 2, 1]))
    assert found.tolist() == [5] * 20 + [0] * 2 + [3]


def test_places_in_the_file_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kdissect.kafka.streams.idle.byte_store.IN_MEMORY", 0)
    store = ByteStore()
    size = np.array([100])
    first, second = store.append(piece(100, 1)), store.append(piece(100, 2))
    for value in range(50):
        store.drop(np.array([first]), size)
        first = store.append(piece(100 - value, value))
        size = np.array([100 - value])
        assert store.get(np.array([first, second]), np.array([1, 1])).tolist() == [value, 2]
    assert store._file_end <= 300
    store.drop(np.array([second, first]), np.array([100, size[0]]))
    assert store._file is not None
    assert (store._file_end, store._file.seek(0, 2)) == (0, 0)


def test_a_piece_stays_while_any_of_its_bytes_is_needed() -> None:
    store = ByteStore()
    at = store.append(np.arange(10, dtype=np.uint8))
    store.drop(np.array([at, at + 5]), np.array([5, 4]))
    assert store.get(np.array([at + 9]), np.array([1])).tolist() == [9]
    store.drop(np.array([at + 9]), np.array([1]))
    assert not store._pieces
