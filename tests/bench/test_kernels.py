"""Seconds of kernels that are compiled within others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.bench.kernels import own_seconds


def outer() -> None: ...


def inner() -> None: ...


def told(time: float, function: Any, is_start: bool) -> tuple[float, Any]:
    return time, SimpleNamespace(data={"dispatcher": SimpleNamespace(py_func=function)}, is_start=is_start)


def test_a_kernel_counts_for_itself() -> None:
    events = [told(1, outer, True), told(3, inner, True), told(7, inner, False), told(8, outer, False)]
    found = {name.rpartition(".")[2]: taken for name, taken in own_seconds(events).items()}
    assert found == {"outer": 3, "inner": 4}
