"""`Capture.show`: the exchange that was asked for, every byte of it, and what is said where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kdissect
from kdissect.demo import CAPTURE
from kdissect.problems import UsageError


@pytest.fixture(scope="module")
def demo() -> Any:
    return kdissect.open(str(CAPTURE))


@pytest.fixture(scope="module")
def rows(demo: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = demo.table("exchanges").to_pylist()
    return found


def test_by_id_and_by_its_beginning(demo: Any, rows: list[dict[str, Any]]) -> None:
    row = next(row for row in rows if row["api"] == "Fetch" and row["status"] == "ok")
    (whole,) = demo.show(row["exchange_id"])
    connection, _, ordinal = row["exchange_id"].partition(":")
    (short,) = demo.show(f"{connection[:8].upper()}:{ordinal}")
    assert whole.exchange == short.exchange == row
    assert len(whole.request_data) == row["request_bytes"]
    assert len(whole.response_data) == row["response_bytes"]
    assert whole.request.column("path").to_pylist()[0] == "size"
    told = dict(zip(whole.request.column("path").to_pylist(), whole.request.column("value").to_pylist(), strict=True))
    assert told["header.correlation_id"] == str(row["correlation_id"])


def test_every_exchange_is_explained_to_its_last_byte(demo: Any, rows: list[dict[str, Any]]) -> None:
    for row in rows[::20]:
        (shown,) = demo.show(row["exchange_id"])
        for explained, data in ((shown.request, shown.request_data), (shown.response, shown.response_data)):
            if explained is None:
                assert row["status"] in ("pending", "orphan")
                continue
            if row["status"] == "orphan":
                assert explained["type"].to_pylist()[-1] is None, "which API it answers is not known"
                continue
            places = zip(explained["offset"].to_pylist(), explained["length"].to_pylist(), strict=True)
            assert max(offset + length for offset, length in places if offset is not None) == len(data)
            assert None not in explained["type"].to_pylist(), "no complaint"


def test_by_frame(demo: Any, rows: list[dict[str, Any]]) -> None:
    row = next(row for row in rows if row["status"] == "ok")
    for side in ("request", "response"):
        assert row in [shown.exchange for shown in demo.show(frame=row[f"{side}_frame"])]


def test_what_is_not_there(demo: Any, rows: list[dict[str, Any]]) -> None:
    told = {row[f"{side}_frame"] for row in rows for side in ("request", "response")}
    silent = next(frame for frame in range(1, 700) if frame not in told)
    with pytest.raises(UsageError, match="ffff:0 is no exchange"):
        demo.show("ffff:0")
    with pytest.raises(UsageError, match=f"frame {silent} completes no"):
        demo.show(frame=silent)
    with pytest.raises(UsageError, match="is no exchange id"):
        demo.show("x")
    with pytest.raises(UsageError, match="show one exchange"):
        demo.show()


def test_a_beginning_that_fits_several(demo: Any, rows: list[dict[str, Any]]) -> None:
    firsts = [row["exchange_id"][0] for row in rows if row["exchange_id"].endswith(":0")]
    shared = next(digit for digit in firsts if firsts.count(digit) > 1)
    with pytest.raises(UsageError, match=r"fits .* connections"):
        demo.show(f"{shared}:0")


def test_missing_bytes_are_said(captures: Path) -> None:
    capture = kdissect.open(str(captures / "field_loss5.pcap"))
    partial = capture.table("exchanges", where="status = 'partial'").to_pylist()[0]
    (shown,) = capture.show(partial["exchange_id"])
    assert any("never captured" in note for note in shown.notes)


def test_from_a_pipe() -> None:
    with CAPTURE.open("rb") as stream:
        (shown, *_) = kdissect.open(stream).show(frame=401)
    assert shown.exchange["api"] == "Fetch"
    assert shown.request is not None
