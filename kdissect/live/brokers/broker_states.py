"""Detects brokers that stand still, that are gone, and that are back.

Rules.

- A broker stands still when it has sent no answer since a request was sent that is overdue. A request is overdue
  `OVERDUE_US` after it was sent, a Fetch so long after the longest wait that its client was seen to ask for. A request
  that may wait for others (`PATIENT`) is never overdue. Requests of a connection that is closed do not wait. A request
  that was sent before the kernel dropped packets proves nothing: its answer, or its connection's end, may be among
  them.
- A broker is gone when it has sent no answer since it refused a connection while none to it was open (or it had been
  silent for a second). It is also gone when it has sent none since it closed the last of its connections by itself. At
  least `CUT_OFF` of them were closed together and with requests open: a process that is killed does both. One
  connection that a broker closes is no evidence, because brokers close such ones for many reasons. Nor is it gone while
  it fetches from others.
- A broker that shuts down in order answers all requests first. It is gone when three things hold. It closed the last of
  its connections at one instant, at least `CLIENTS` clients among them. It did not answer for `AWAY_US` after that.
  Each of these clients has sent requests to other brokers meanwhile. Connections that were idle for a minute are no
  evidence.
- A broker that is gone stays so until it answers, or fetches from another broker as a follower: then it is back. The
  client id of a follower names it: `broker-3-fetcher-0` (Kafka's ReplicaFetcherManager). It is back, too, when another
  broker lists it in a Metadata answer to a request that was sent after an answer of that broker had left it out:
  Metadata lists the brokers that are alive, and each broker learns of changes in their order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa

from kdissect.arrays.arrow import EPOCH
from kdissect.live.moment import Links, Listing, Waiting

OVERDUE_US = 1_000_000
PATIENT = frozenset({"JoinGroup", "SyncGroup", "ShareFetch", "AddRaftVoter", "FetchSnapshot", "Vote"})
CUT_OFF = 2
CLIENTS = 2
"""Clients whose connections a broker closed: those of one may have a reason of its own."""
AWAY_US = 1_000_000
"""Clients connect again within so long where a broker is there (reconnect.backoff.max.ms)."""
FOLLOWER = re.compile(r"broker-(\d+)-fetcher-\d+")
REMEMBERED = 4096
"""Clients whose longest wait, and brokers whose last answer, is remembered."""


def instant(us: int) -> str:
    """Microseconds since the epoch in ISO 8601, UTC."""
    return (EPOCH + timedelta(microseconds=us)).isoformat(timespec="microseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Change:
    """A broker came into another state. `at_us`: when, microseconds."""

    id: str
    severity: str
    at_us: int
    text: str
    broker: str


class BrokerStates:
    """The state of each broker, from one moment to the next."""

    def __init__(self) -> None:
        self.still: dict[str, int] = {}
        """Brokers that stand still, and since when (microseconds)."""
        self.gone: dict[str, int] = {}
        """Brokers that are gone, and since when (microseconds)."""
        self._answers: dict[str, int] = {}
        """When each broker answered last."""
        self._fetches: dict[str, int] = {}
        """When each broker fetched from another one last."""
        self._left_out: dict[tuple[str, str | None], int] = {}
        """By two brokers: when the latest answer of the second came that leaves out the first, until it lists it."""
        self._listed: dict[str, tuple[int, int]] = {}
        """Brokers that were listed again: when the last answer without them came, and the first one with them."""
        self._requests: dict[str, int] = {}
        """By client, when the latest request was sent that was answered."""
        self._longest: dict[str, float] = {}
        """By client, the longest wait (ms) that it asked for."""
        self._dropped = self._dropped_at = 0
        """Packets that the kernel dropped, and when it was last known to have dropped more (microseconds)."""

    def rename(self, old: str, new: str) -> None:
        """A broker is called otherwise from now on."""
        if old in self._answers:
            self._answers[new] = max(self._answers.pop(old), self._answers.get(new, 0))
        for since in (self.still, self.gone):
            if old in since:
                since[new] = min(since.pop(old), since.get(new, 2**63 - 1))

    def note_answers(self, exchanges: pa.Table) -> None:
        """When brokers answered, and who asked: rows of `exchanges`."""
        answered = exchanges.filter(exchanges["response_first_at"].is_valid())
        for broker, when in _greatest(answered, "broker", "response_first_at"):
            _raise(self._answers, broker, when)
        for client, when in _greatest(answered, "client_id", "request_first_at"):
            _raise(self._requests, client, when)
        self._note_followers(exchanges)

    def _note_followers(self, exchanges: pa.Table) -> None:
        """When brokers fetched from others."""
        for client, when in _greatest(exchanges, "client_id", "request_first_at"):
            if named := FOLLOWER.fullmatch(client):
                _raise(self._fetches, named[1], when)

    def note_listings(self, listings: Sequence[Listing]) -> None:
        """Notes the brokers that others list as alive."""
        for one in sorted(listings, key=lambda one: one.answered_us):
            for broker in self._answers.keys() - one.listed:
                _raise(self._left_out, (broker, one.sender), one.answered_us)
            for broker in one.listed:
                left_out = self._left_out.get((broker, one.sender))
                if left_out is not None and left_out < one.asked_us:
                    del self._left_out[broker, one.sender]
                    self._listed[broker] = (left_out, one.answered_us)

    def note_waits(self, fetches: pa.Table) -> None:
        """How long clients ask brokers to wait: rows of `fetches`."""
        for client, longest in _greatest(fetches, "client_id", "max_wait_ms"):
            _raise(self._longest, client, longest)

    def note_drops(self, dropped: int | None, now_us: int) -> None:
        """How many packets the kernel dropped by now; None: not known."""
        if dropped is not None and dropped > self._dropped:
            self._dropped, self._dropped_at = dropped, now_us

    def judge(self, now_us: int, waits: Sequence[Waiting], links: Mapping[str, Links], share: float) -> list[Change]:
        """The changes by now. `share`: of all connections, those that are looked at."""
        found = []
        for broker, since in list(self.gone.items()):
            left_out, listed = self._listed.get(broker, (0, 0))
            signs = [
                (self._answers.get(broker, 0), "it answers"),
                (self._fetches.get(broker, 0), "it fetches from other brokers"),
                (listed if left_out > since else 0, "others list it again"),
            ]
            seen = [sign for sign in signs if sign[0] > since]
            if seen:
                at_us, how = min(seen)
                del self.gone[broker]
                text = f"broker {broker} is back after {(at_us - since) / 1e6:.1f} s: {how}"
                found.append(Change("back", "info", at_us, text, broker))
        for broker, link in links.items():
            why = self._gone_since(broker, link, now_us) if broker not in self.gone else None
            if why is not None:
                self.gone[broker] = why[0]
                self.still.pop(broker, None)
                found.append(Change("gone", "high", why[0], f"broker {broker} is gone: {why[1]}", broker))
        return found + self._judge_silence(now_us, waits, share)

    def _gone_since(self, broker: str, link: Links, now_us: int) -> tuple[int, str] | None:
        """Since when a broker is gone, and how that shows; None: it is not."""
        answered = self._answers.get(broker, 0)
        if not answered:  # nobody knows whether it ever was there
            return None
        there = max(self._fetches.get(broker, 0), self._listed.get(broker, (0, 0))[1])
        closed = not link.open and link.closed_us > max(answered, there)
        if closed and link.cut_off >= CUT_OFF:
            return link.closed_us, f"it closed all of its {link.cut_off} connections, with requests open"
        if closed and self._left_behind(link, now_us):
            return (
                link.closed_us,
                f"it closed all of its {link.closed} connections, and its clients went on with others",
            )
        silent = link.refused_us - answered
        if silent > 0 and (not link.open or silent >= OVERDUE_US) and link.refused_us - there >= OVERDUE_US:
            return link.refused_us, "it refuses connections"
        return None

    def _left_behind(self, link: Links, now_us: int) -> bool:
        """Whether each client of the connections that were closed at one instant went on with other brokers."""
        away = now_us - link.closed_us >= AWAY_US and len(link.left) >= CLIENTS
        return away and all(self._requests.get(client, 0) > link.closed_us for client in link.left)

    def _judge_silence(self, now_us: int, waits: Sequence[Waiting], share: float) -> list[Change]:
        overdue: dict[str, list[Waiting]] = {}
        for wait in waits:
            if wait.broker is None or wait.broker in self.gone or self._answers.get(wait.broker, 0) > wait.since_us:
                continue
            if wait.since_us > self._dropped_at and now_us - wait.since_us >= self._may_wait_us(wait):
                overdue.setdefault(wait.broker, []).append(wait)
        found, still = [], {}
        for broker, late in overdue.items():
            since = min(wait.since_us for wait in late)
            still[broker] = since
            if broker not in self.still:
                apis = ", ".join(sorted({wait.api for wait in late}))
                clients = len({wait.client_id for wait in late})
                seen = "" if share == 1 else f" on the {share:.0%} of connections that are worked on"
                text = (
                    f"broker {broker} has answered nobody{seen} for {(now_us - since) / 1e6:.1f} s: {apis} of "
                    f"{clients} client{'s' * (clients != 1)} wait{'s' * (clients == 1)}"
                )
                found.append(Change("standstill", "high", since, text, broker))
        for broker in self.still.keys() - still.keys():
            if self._answers.get(broker, 0) > self.still[broker]:
                found.append(Change("answers_again", "info", now_us, f"broker {broker} answers again", broker))
            else:
                text = f"nobody waits for broker {broker} any more"
                if self.still[broker] <= self._dropped_at:
                    text = f"it is not known whether broker {broker} answers: the kernel dropped packets"
                found.append(Change("waits_no_more", "info", now_us, text, broker))
        self.still = still
        return found

    def _may_wait_us(self, wait: Waiting) -> float:
        if wait.api == "Fetch":
            longest = self._longest.get(wait.client_id or "")
            return float("inf") if longest is None else longest * 1000 + OVERDUE_US
        return float("inf") if wait.api in PATIENT else OVERDUE_US


def _greatest(rows: pa.Table, by: str, column: str) -> Iterator[tuple[str, Any]]:
    """For each text of one column the greatest value of another; instants as microseconds."""
    known = rows.select([by, column]).drop_null()
    known = known.set_column(0, by, known[by].cast(pa.string()))
    found = known.group_by(by).aggregate([(column, "max")])
    values = found[f"{column}_max"]
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    return zip(found[by].to_pylist(), values.to_pylist(), strict=True)


def _raise(maxima: dict[Any, Any], name: Any, value: Any) -> None:
    """Keep the greatest value of a name, of REMEMBERED names."""
    if name in maxima or len(maxima) < REMEMBERED:
        maxima[name] = max(maxima.get(name, 0), value)
