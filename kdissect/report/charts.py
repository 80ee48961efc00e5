"""The charts as Vega-Lite specifications: plain data, without rows and without colours of their own.

The page's script puts in the rows (by the names of `rows`), the width, and the colours of the light or the dark theme.
Times arrive as `<name>` in milliseconds since the epoch; durations stay milliseconds. Fields are named by us, so that
nothing from a capture is ever part of an expression.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kdissect.report.budget_chart import BOXES
from kdissect.report.figure_rows import PARTS

Spec = Mapping[str, Any]

HOLDS = ("timeout", "data", "immediate", "throttled", "replication", "rebalance", "error", "unknown")
"""Values of `hold`, in the order in which they are stacked: a long poll first."""
ENDS = ("closed", "replaced", "empty", "evicted", "open")
OUTCOMES = (
    "created",
    "continued",
    "closed",
    "evicted_or_unknown",
    "epoch_error",
    "topic_id_error",
    "refused",
    "throttled",
    "error",
)


FLUSH = 42
"""Pixels from either end of an axis of time, within which a label is aligned to its tick: half of the widest."""


def _time(field: str = "at") -> dict[str, Any]:
    """An axis of time in UTC, independent of the reader's clock."""
    return {
        "field": field, "type": "temporal", "scale": {"type": "utc"}, "title": None,
        "axis": {"labelOverlap": True, "labelFlush": FLUSH, "tickCount": 8},
    }  # fmt: skip


def _tip(field: str, title: str, form: str | None = None) -> dict[str, Any]:
    """A line of a tooltip: text, or a number in that format."""
    tip = {"field": field, "title": title, "type": "quantitative" if form else "nominal"}
    return {**tip, "format": form} if form else tip


def _count(field: str, title: str) -> dict[str, Any]:
    return _tip(field, title, ",")


def _when(field: str, title: str) -> dict[str, Any]:
    return _tip(f"{field}_text", title)  # the page's script writes times, in UTC, as <name>_text


def _colour_by(field: str, title: str, words: tuple[str, ...]) -> dict[str, Any]:
    """A colour for each word, the same in every chart; the page knows the colours by the words."""
    return {
        "field": field,
        "type": "nominal",
        "title": title,
        "scale": {"domain": list(words)},
        "legend": {"orient": "top"},
    }


MS = {
    "type": "quantitative",
    "scale": {"type": "log"},
    "axis": {
        "labelExpr": "datum.value < 1 ? format(datum.value * 1000, '~r') + ' µs'"
        " : datum.value < 1000 ? format(datum.value, '~r') + ' ms' : format(datum.value / 1000, '~r') + ' s'",
        "values": [10.0**power for power in range(-3, 8)],
    },
}
"""A logarithmic axis of milliseconds, each label in the unit that fits."""


def _heat(counted: str, title: str) -> Spec:
    """How many took how long, and when: cells of time and of a duration's step, as dark as `counted` is large."""
    return {
        "height": 300,
        "mark": {"type": "rect", "clip": True},
        "encoding": {
            "x": _time(),
            "x2": {"field": "until"},
            "y": {"field": "from_ms", "title": title, **MS},
            "y2": {"field": "to_ms"},
            "color": {
                "field": counted,
                "type": "quantitative",
                "title": counted,
                "scale": {"type": "log"},
                "legend": {"orient": "top", "gradientLength": 160, "tickCount": 4, "format": "~s"},
            },
            "tooltip": [
                _when("at", "from"),
                _tip("from_ms", f"{title} from (ms)", ",.3r"),
                _tip("to_ms", "to (ms)", ",.3r"),
                _count(counted, counted),
            ],
        },
    }


QUANTILES: Spec = {
    "height": {"step": 24},
    "encoding": {"y": {"field": "api", "type": "nominal", "sort": None, "title": None}},
    "layer": [
        {
            "mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.45},
            "encoding": {
                "x": {"field": "p50_ms", "title": "latency", **MS},
                "x2": {"field": "max_ms"},
            },
        },
        {
            "transform": [
                {"fold": ["p50_ms", "p90_ms", "p99_ms", "max_ms"], "as": ["key", "ms"]},
                {"calculate": "replace(datum.key, '_ms', '')", "as": "quantile"},
            ],
            "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1},
            "encoding": {
                "x": {"field": "ms", "title": "latency", **MS},
                "color": _colour_by("quantile", "", ("p50", "p90", "p99", "max")),
                "shape": _colour_by("quantile", "", ("p50", "p90", "p99", "max")),
                "tooltip": [
                    _tip("api", "API"),
                    _tip("quantile", "quantile"),
                    _tip("ms", "ms", ",.3f"),
                    _count("exchanges", "exchanges"),
                ],
            },
        },
    ],
}

PARTS_BY: Spec = {
    "height": {"step": 26},
    "mark": {"type": "bar"},
    "encoding": {
        "y": {"field": "group", "type": "nominal", "title": None, "sort": None},
        "x": {
            "field": "seconds",
            "aggregate": "sum",
            "type": "quantitative",
            "stack": "zero",
            "title": "seconds, all exchanges together",
            "axis": {"format": "~s"},
        },
        "color": _colour_by("part", "", PARTS),
        "order": {"field": "order", "type": "quantitative"},
        "tooltip": [
            _tip("group", "of"),
            _tip("part", "spent"),
            {"field": "seconds", "aggregate": "sum", "type": "quantitative", "title": "seconds", "format": ",.3f"},
        ],
    },
}

BUDGET: Spec = {
    "height": {"step": 26},
    "mark": {"type": "bar"},
    "encoding": {
        "y": {"field": "client", "type": "nominal", "title": None, "sort": None},
        "x": {
            "field": "seconds",
            "type": "quantitative",
            "stack": "zero",
            "title": "seconds",
            "scale": {"nice": False},
            "axis": {"tickCount": 8},
        },
        "color": _colour_by("box", "", BOXES),
        "order": {"field": "order", "type": "quantitative"},
        "tooltip": [
            _tip("client", "client"),
            _tip("box", "spent"),
            _tip("seconds", "seconds", ",.3f"),
            _tip("share", "share", ".1%"),
        ],
    },
}

HOLDS_OVER: Spec = {
    "height": 240,
    "mark": {"type": "rect"},
    "transform": [
        {
            "aggregate": [{"op": "sum", "field": "exchanges", "as": "count"}],
            "groupby": ["hold", "order", "from_ms", "to_ms"],
        },
        {"stack": "count", "groupby": ["from_ms"], "sort": [{"field": "order"}], "as": ["low", "high"]},
    ],
    "encoding": {
        "x": {"field": "from_ms", "title": "broker time", **MS},
        "x2": {"field": "to_ms"},
        "y": {"field": "low", "type": "quantitative", "title": "exchanges", "axis": {"format": "~s"}},
        "y2": {"field": "high"},
        "color": _colour_by("hold", "", HOLDS),
        "tooltip": [
            _tip("hold", "hold"),
            _tip("from_ms", "broker time from (ms)", ",.3r"),
            _tip("to_ms", "to (ms)", ",.3r"),
            _count("count", "exchanges"),
        ],
    },
}

OUTLIERS: Spec = {
    "height": 240,
    "mark": {"type": "point", "filled": True, "size": 60, "opacity": 0.85, "cursor": "pointer"},
    "encoding": {
        "x": _time(),
        "y": {"field": "slow_ms", "title": "slow by", **MS},
        "color": {"field": "api", "type": "nominal", "title": "", "legend": {"orient": "top", "columns": 6}},
        "tooltip": [
            _tip("exchange_id", "exchange"),
            _when("at", "at"),
            _tip("api", "API"),
            _tip("client_id", "client"),
            _tip("slow_ms", "ms", ",.3f"),
            _tip("hold", "hold"),
            _count("request_frame", "request in frame"),
            _count("response_frame", "response in frame"),
        ],
    },
}

ALIVE: Spec = {
    "vconcat": [
        {
            "height": 180,
            "width": "container",
            "mark": {"type": "area", "interpolate": "step-after", "line": True, "opacity": 0.3, "clip": True},
            "encoding": {
                "x": _time(),
                "y": {"field": "live", "type": "quantitative", "title": "sessions alive"},
                "tooltip": [
                    _when("at", "at"),
                    _count("live", "alive"),
                    _count("created", "created"),
                    _count("evicted", "evicted"),
                ],
            },
        },
        {
            "height": 110,
            "width": "container",
            "transform": [
                {"fold": ["created", "evicted", "refused", "epoch_errors"], "as": ["event", "count"]},
                {"calculate": "replace(datum.event, '_', ' ')", "as": "event"},
                {"filter": "datum.count > 0"},
                {"stack": "count", "groupby": ["at"], "sort": [{"field": "event"}], "as": ["low", "high"]},
            ],
            "mark": {"type": "rect", "clip": True},
            "encoding": {
                "x": _time(),
                "x2": {"field": "until"},
                "y": {"field": "low", "type": "quantitative", "title": "events"},
                "y2": {"field": "high"},
                "color": _colour_by("event", "", ("created", "evicted", "refused", "epoch errors")),
                "tooltip": [_when("at", "from"), _tip("event", "event"), _count("count", "count")],
            },
        },
    ],
    "resolve": {"scale": {"x": "shared"}},
}

LIFELINES: Spec = {
    "height": {"step": 9},
    "mark": {"type": "bar", "height": 6, "cursor": "pointer", "cornerRadius": 2, "minBandSize": 4, "clip": True},
    "encoding": {
        "x": _time("opened_at"),
        "x2": {"field": "closed_at"},
        "y": {"field": "session_key", "type": "nominal", "sort": None, "title": None, "axis": None},
        "color": _colour_by("end_reason", "", ENDS),
        "tooltip": [
            _tip("session_key", "session"),
            _tip("clients", "clients"),
            _when("opened_at", "opened"),
            _tip("end_reason", "end"),
            _count("requests", "requests"),
            _count("last_epoch", "last epoch"),
            _count("max_partitions", "partitions"),
        ],
    },
}

EPOCHS: Spec = {
    "height": 200,
    "encoding": {
        "x": _time(),
        "y": {"field": "session_epoch", "type": "quantitative", "title": "epoch asked with"},
    },
    "layer": [
        {
            "mark": {"type": "line", "interpolate": "step-after", "opacity": 0.35},
            "encoding": {"detail": {"field": "piece", "type": "nominal"}},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 45, "opacity": 1},
            "encoding": {
                "color": _colour_by("session_outcome", "", OUTCOMES),
                "tooltip": [
                    _when("at", "at"),
                    _count("session_epoch", "epoch"),
                    _tip("request_kind", "kind"),
                    _tip("epoch_status", "epoch is"),
                    _tip("session_outcome", "outcome"),
                    _tip("exchange_id", "exchange"),
                    _count("request_frame", "frame"),
                ],
            },
        },
    ],
}

THROUGHPUT: Spec = {
    "height": 240,
    "mark": {"type": "rect", "clip": True},
    "transform": [{"stack": "rate", "groupby": ["at"], "sort": [{"field": "api"}], "as": ["low", "high"]}],
    "encoding": {
        "x": _time(),
        "x2": {"field": "until"},
        "y": {"field": "low", "type": "quantitative", "title": "per second", "axis": {"format": "~s"}},
        "y2": {"field": "high"},
        "color": {"field": "api", "type": "nominal", "title": "", "legend": {"orient": "top", "columns": 5}},
        "tooltip": [
            _when("at", "from"),
            _tip("api", "API"),
            _tip("rate", "per second", ",.4~s"),
            _count("exchanges", "exchanges"),
        ],
    },
}

CHARTS: Mapping[str, Spec] = {
    "heat": _heat("exchanges", "latency"),
    "delivery-heat": _heat("deliveries", "delivery"),
    "latency-by-api": QUANTILES,
    "time-parts": PARTS_BY,
    "budget": BUDGET,
    "holds": HOLDS_OVER,
    "outliers": OUTLIERS,
    "sessions-alive": ALIVE,
    "sessions": LIFELINES,
    "epochs": EPOCHS,
    "throughput": THROUGHPUT,
}
"""By the name of their figure."""
