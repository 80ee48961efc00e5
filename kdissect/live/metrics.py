"""The figures as OpenMetrics, for Prometheus and others that read it (https://prometheus.io/docs/specs/om).

Label sets are bounded: names are those that have a place in `kdissect.live.labels`, the rest is `other`; APIs,
statuses, errors and kinds of problem are those of the protocol and of kdissect. Counters only rise while their name has
its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kdissect.escaping import visible
from kdissect.live.labels import EDGES_MS, Dimension
from kdissect.live.running_figures import Figures

if TYPE_CHECKING:
    from prometheus_client.core import HistogramMetricFamily, Metric

    from kdissect.live.metrics_server import MetricsServer

LABELS = {"broker": "broker", "client": "client", "topic": "topic", "api": "api"}


class Collector:
    """Gives the metrics of `figures` whenever they are asked for. Made for `prometheus_client`'s registries."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        """All families, of one instant; the registry's own name for it."""
        figures = self._figures
        with figures.lock:
            snapshot = figures.snapshot()
            families = [
                *self._exchanges(), *map(_histogram, figures.of.values()), *self._deliveries(),
                *self._state(snapshot), *self._loss(snapshot),
            ]  # fmt: skip
        yield from families

    def _exchanges(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily

        figures = self._figures
        family = CounterMetricFamily(
            "kdissect_exchanges", "Exchanges by API and how they ended.", labels=["api", "status"]
        )
        for (api, status), count in sorted(figures.statuses.items()):
            family.add_metric([visible(api) or "unknown", status], count)
        yield family
        family = CounterMetricFamily(
            "kdissect_errors", "Exchanges answered with an error, by API and error.", labels=["api", "error"]
        )
        for (api, error), count in sorted(figures.error_codes.items()):
            family.add_metric([visible(api) or "unknown", error], count)
        yield family
        for name, dimension in figures.of.items():
            for what, help_text, counted in (
                ("exchanges", "Exchanges", dimension.exchanges),
                ("errors", "Exchanges answered with an error", dimension.errors),
                ("bytes", "Bytes of requests and responses", dimension.bytes),
            ):
                family = CounterMetricFamily(f"kdissect_{name}_{what}", f"{help_text}, by {name}.", labels=[name])
                for place, text in _labelled(dimension):
                    family.add_metric([text], int(counted[place]))
                yield family

    def _deliveries(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        if self._figures.deliveries is None:
            return
        from kdissect.live.delivery_figures import topic_and_group

        of = self._figures.deliveries.of
        places = [(place, [visible(one) for one in topic_and_group(text)]) for place, text in _places(of)]
        for name, help_text, counted in (
            ("deliveries", "Record batches that groups were given.", of.exchanges),
            ("untimed_deliveries", "Those of them whose Produce request is not known, or no longer.", of.errors),
        ):
            family = CounterMetricFamily(f"kdissect_{name}", help_text, labels=["topic", "group"])
            for place, labels in places:
                family.add_metric(labels, int(counted[place]))
            yield family
        histogram = HistogramMetricFamily(
            "kdissect_delivery_seconds", "From a record batch's Produce request to its group, and what it waited for.",
            labels=["topic", "group", "waited_for"],
        )  # fmt: skip
        for place, labels in places:
            _add_histograms(histogram, of, place, labels)
        yield histogram

    def _state(self, snapshot: dict[str, Any]) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        figures = self._figures
        alive = GaugeMetricFamily("kdissect_fetch_sessions", "Fetch sessions that are alive.", labels=["broker"])
        for broker, count in sorted(figures.sessions.items())[: figures.of["broker"].limit]:
            alive.add_metric([visible(broker)], count)
        yield alive
        ended = CounterMetricFamily(
            "kdissect_fetch_sessions_ended", "Fetch sessions that ended, by how; `open`: the capture ended first.",
            labels=["broker", "reason"],
        )  # fmt: skip
        for (broker, reason), count in sorted(figures.sessions_ended.items()):
            ended.add_metric([visible(broker), reason], count)
        yield ended
        lag = GaugeMetricFamily(
            "kdissect_lag_records", "How far behind the fetch positions of a client are, all partitions of a topic.",
            labels=["client", "topic"],
        )  # fmt: skip
        for (client, topic), partitions in sorted(figures.lags.items()):
            lag.add_metric([visible(client), visible(topic)], sum(partitions.values()))
        yield lag
        waiting = GaugeMetricFamily("kdissect_waiting_requests", "Requests without an answer.", labels=["broker"])
        oldest = GaugeMetricFamily(
            "kdissect_waiting_seconds", "Since when the oldest request without an answer waits.", labels=["broker"]
        )
        still = GaugeMetricFamily(
            "kdissect_standing_still", "1: the broker answers nobody though requests are overdue.", labels=["broker"]
        )
        gone = GaugeMetricFamily(
            "kdissect_broker_gone", "1: the broker closed its connections or refuses new ones.", labels=["broker"]
        )
        for line in snapshot["brokers"]:
            name = [visible(line["name"])]
            waiting.add_metric(name, line["waiting"])
            oldest.add_metric(name, (line["waiting_ms"] or 0.0) / 1000)
            still.add_metric(name, float(line["standing_still"]))
            gone.add_metric(name, float(line["gone"]))
        yield from (waiting, oldest, still, gone)

    def _loss(self, snapshot: dict[str, Any]) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        figures = self._figures
        for name, help_text, value in (
            ("packets", "Packets read.", figures.packets_read),
            ("wire_bytes", "Bytes of these packets on the wire.", figures.bytes_read),
            ("connections", "TCP connections met.", figures.connections),
            ("segments", "TCP segments read.", figures.segments),
            ("left_out_segments", "TCP segments of connections that sampling left out.", figures.left_out),
            ("missing_bytes", "Bytes that were sent and not captured.", figures.problem_bytes["missing_bytes"]),
        ):
            yield CounterMetricFamily(f"kdissect_{name}", help_text, value=value)
        problems = CounterMetricFamily("kdissect_problems", "What could not be read, by kind.", labels=["kind"])
        for kind, count in sorted(figures.problems.items()):
            problems.add_metric([kind], count)
        yield problems
        if figures.dropped is not None:
            yield CounterMetricFamily("kdissect_dropped_packets", "Packets the kernel dropped.", value=figures.dropped)
        yield GaugeMetricFamily(
            "kdissect_sampled_share", "Share of connections that is worked on.", value=figures.share
        )
        yield GaugeMetricFamily("kdissect_behind_seconds", "How late packets are looked at.", value=figures.behind_s)


def _labelled(dimension: Dimension) -> Iterator[tuple[int, str]]:
    """Places that have anything, with their label."""
    for place, text in _places(dimension):
        yield place, visible(text)


def _places(dimension: Dimension) -> Iterator[tuple[int, str]]:
    """Places that have anything, with their name."""
    for place, text in enumerate(dimension.texts):
        if text is not None and (place or dimension.exchanges[0] or dimension.histogram[0].any()):
            yield place, text


def _histogram(dimension: Dimension) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    name = dimension.name
    family = HistogramMetricFamily(
        f"kdissect_{name}_seconds", f"Durations by {name} and whose time it was.", labels=[name, "part"]
    )
    for place, text in _labelled(dimension):
        _add_histograms(family, dimension, place, [text])
    return family


def _add_histograms(family: HistogramMetricFamily, dimension: Dimension, place: int, labels: list[str]) -> None:
    """Add the histogram of each part of a place that has any durations."""
    bounds = [*(f"{edge / 1000:g}" for edge in EDGES_MS), "+Inf"]
    for part, called in enumerate(dimension.parts):
        counts = dimension.histogram[place, part].cumsum().tolist()
        if counts[-1]:
            buckets = list(zip(bounds, counts, strict=True))
            family.add_metric([*labels, called], buckets, sum_value=float(dimension.sum_ms[place, part]) / 1000)


class Server:
    """Serves the metrics of `figures` at an open port until `close`."""

    def __init__(self, port: MetricsServer, figures: Figures) -> None:
        from prometheus_client import CollectorRegistry, make_wsgi_app

        registry = CollectorRegistry(auto_describe=False)
        registry.register(Collector(figures))
        self._port = port
        self.url = port.url
        port.serve(make_wsgi_app(registry))

    def close(self) -> None:
        """Serve no longer."""
        self._port.close()
