"""The metric `messaging.client.operation.duration`: a histogram of operations that got their answer.

Rules: semantic conventions for messaging client metrics (boundaries, unit); attributes are those of
`Operations.measured`. Times are the capture's own, so that a capture of yesterday counts there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from kdissect.arrays.arrow import NULL_TIME, Int64s
from kdissect.otlp.operations import Operations
from kdissect.otlp.span_times import SpanTimes

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData
    from opentelemetry.sdk.resources import Resource

NAME, UNIT = "messaging.client.operation.duration", "s"
DESCRIPTION = "Duration of messaging operation initiated by a producer or consumer client."
BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Seconds, as the conventions recommend."""
MOST_SERIES = 2000
"""Attribute sets, OpenTelemetry's own default limit; further ones count together."""
OVERFLOW: Mapping[str, Any] = {"otel.metric.overflow": True}
MICRO = 1e-6


class _Series:
    """Operations with the same attributes."""

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        self.attributes = attributes
        self.counts = np.zeros(len(BOUNDS) + 1, np.int64)
        self.sum, self.least, self.most = 0.0, np.inf, 0.0

    def add(self, seconds: np.ndarray) -> None:
        # A value equal to a bound is in the bucket below it.
        self.counts += np.bincount(np.searchsorted(BOUNDS, seconds, "left"), minlength=len(self.counts))
        self.sum += float(seconds.sum())
        self.least, self.most = min(self.least, float(seconds.min())), max(self.most, float(seconds.max()))


class DurationCounts:
    """Counts durations from the first row on; memory is bounded by MOST_SERIES."""

    def __init__(self) -> None:
        self._series: dict[str, _Series] = {}
        self._first, self._last = NULL_TIME, NULL_TIME

    def add(self, operations: Operations, times: SpanTimes) -> None:
        """Counts exchanges whose duration is known."""
        known = np.flatnonzero(times.borders[0] != NULL_TIME)
        if not len(known):
            return
        self._first = (
            int(times.begin[known].min())
            if self._first == NULL_TIME
            else min(self._first, int(times.begin[known].min()))
        )
        self._last = max(self._last, int(times.end[known].max()))
        rows_of: dict[str, list[int]] = {}
        for row in known.tolist():
            rows_of.setdefault(json.dumps(operations.measured(row), sort_keys=True), []).append(row)
        for text, rows in rows_of.items():
            at: Int64s = np.array(rows, np.int64)
            self._of(text).add((times.end[at] - times.begin[at]) * MICRO)

    def _of(self, text: str) -> _Series:
        series = self._series.get(text)
        if series is None:
            full = len(self._series) >= MOST_SERIES - 1
            key = json.dumps(OVERFLOW) if full else text
            series = self._series.setdefault(key, _Series(json.loads(key)))
        return series

    def metrics(self, resource: Resource, now_ns: int | None = None) -> MetricsData | None:
        """All that was counted, as a cumulative histogram; None if nothing was. `now_ns`: its time, if that is not the
        end of the last operation."""
        from opentelemetry.sdk.metrics.export import (
            AggregationTemporality,
            Histogram,
            HistogramDataPoint,
            Metric,
            MetricsData,
            ResourceMetrics,
            ScopeMetrics,
        )
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        import kdissect

        if not self._series:
            return None
        end = self._last * 1000 if now_ns is None else now_ns
        points = [
            HistogramDataPoint(
                one.attributes, self._first * 1000, end, int(one.counts.sum()), one.sum, one.counts.tolist(), BOUNDS,
                one.least, one.most,
            )
            for one in self._series.values()
        ]  # fmt: skip
        metric = Metric(NAME, DESCRIPTION, UNIT, Histogram(points, AggregationTemporality.CUMULATIVE))
        scope = ScopeMetrics(InstrumentationScope("kdissect", kdissect.__version__), [metric], "")
        return MetricsData([ResourceMetrics(resource, [scope], "")])
