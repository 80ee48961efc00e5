"""The analysis of one cluster as a stage behind the tables: what it reads, and what it fills in and adds.

    stage = Stage(asked)                      # table -> columns asked for (None: all)
    stage.tables, stage.messages              # what has to be read for it
    done = stage.feed(rows, messages, watermark)
    done = stage.finish()

`feed` and `finish` return rows of `exchanges`, `fetches`, `fetch_partitions`, `produces`, `offset_commits`,
`fetch_sessions` and `session_partitions`, as far as they were fed and the analysis takes part in them. Rows of an
exchange come back once nothing earlier can come any more. Share sessions come from `finish`. Findings, time budgets,
deliveries, traced records and transactions need everything (`kdissect.analysis.cluster_stages.Stages.whole`). Brokers
and topics of the rows are resolved already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kdissect.analysis.sessions.session_rules import MAX_WAITING
from kdissect.arrays.arrow import Coder, whole
from kdissect.arrays.rows import Rows, as_tables
from kdissect.tables.declaration import SCHEMAS, TABLES, readers
from kdissect.tables.declaration.model import ACKS_KEY, By

if TYPE_CHECKING:
    from kdissect.analysis.committed_lag import CommitTracker
    from kdissect.analysis.holds.carried_state import CarriedStage
    from kdissect.analysis.holds.exchange_holds import HeldExchanges
    from kdissect.analysis.holds.fetch_holds import HoldTracker
    from kdissect.analysis.holds.replication import ReplicationTracker
    from kdissect.analysis.sessions.tracker import SessionTracker
    from kdissect.tables.fetch_rows import NamedFetches

RowsByTable = Mapping[str, Rows]
NO_WATERMARK = 2**63 - 1
HIDDEN = frozenset({"fetches", "fetch_partitions", "produces", "produce_partitions"})
"""Tables whose rows may be integers that nobody sees (`Stage.hide`)."""
MOST_WINDOWS = 1 << 16
"""Throttle windows kept for requests of later blocks, the last ones."""
HELD_ROWS = 1 << 16
"""Exchanges whose hold is told and that wait for others of their block; beyond that only those that nothing was told of
wait, which costs copies."""
Messages = Mapping[tuple[int, int], pa.Table]
"""(API key, side: 0 request, 1 response) -> nested messages with `exchange_id`, of which only the paths asked for."""


class Stage:
    """The parts of the analysis that the tables asked for need. `asked`: table -> columns that will be read (None:
    all). `waiting`: rows that may wait for the watermark before some are worked on all the same. `topics`: findings are
    looked for in rows of these alone, where any are named."""

    def __init__(
        self,
        asked: Mapping[str, Sequence[str] | None],
        slow: float | None = None,
        waiting: int = MAX_WAITING,
        topics: Sequence[str] = (),
    ) -> None:
        self.slow = slow
        self._topics = topics
        self._most = waiting
        self.asked = {name: frozenset(TABLES[name].by_name if c is None else c) for name, c in asked.items()}
        wanted = {TABLES[name].made for name in asked} | {
            TABLES[name].by_name[column].by for name, columns in self.asked.items() for column in columns
        }
        self._wanted = wanted
        self.finds = By.FINDINGS in wanted
        self.shares = self.finds or By.SHARES in wanted
        self.budgets = bool(wanted & {By.BUDGET, By.LEDGER})
        self.traffic = By.TRAFFIC in wanted
        self.delivers = By.DELIVERIES in wanted
        self.transacts = By.TRANSACTIONS in wanted
        self.traces = By.TRACED in wanted
        self.commits = self.finds or By.COMMITS in wanted
        self.holds_exchanges = self.finds or self.budgets or By.EXCHANGE_HOLDS in wanted
        self.holds = self.holds_exchanges or By.FETCH_HOLDS in wanted
        self.replicates = self.holds_exchanges or By.PRODUCE_HOLDS in wanted
        self.follows = self.holds or By.SESSIONS in wanted
        self.prompt = False
        """Whether each row is wanted as soon as it is settled: else some come a little later, which costs less."""
        self._hides = False
        """Whether rows of HIDDEN are hidden."""
        self._none: dict[str, Rows] = {}
        """No rows, with the columns of those fed last."""
        self._tracker: SessionTracker | None = None
        self._holder: HoldTracker | None = None
        self._replicas: ReplicationTracker | None = None
        self._committer: CommitTracker | None = None
        self._exchanges: deque[HeldExchanges] = deque()
        self._throttled = Rows({}, 0)
        self._uses: list[pa.Table] = []
        """Of share sessions."""

    def findings_end(self) -> None:
        """Findings read nothing of what comes from here on: what is only for them is not worked on any more, but for
        sessions, which may go on."""
        self.finds = False
        self.commits = By.COMMITS in self._wanted

    @property
    def _summing(self) -> tuple[bool, ...]:
        """Parts that read every record batch, at the end."""
        return self.traffic, self.delivers, self.transacts, self.traces

    @property
    def reads_every_batch(self) -> bool:
        """Whether rows of every record batch are needed, where findings need some."""
        return self.budgets or any(self._summing)

    @property
    def idle(self) -> bool:
        """Nothing that was asked for concerns the analysis."""
        parts = (self.follows, self.replicates, self.shares, self.commits, *self._summing, self.finds)
        return not any(parts)

    @property
    def only_holds(self) -> bool:
        """True if fetches, produces and their partitions are read only for why exchanges were held back. Then their
        rows may be hidden (`hide`)."""
        others = (self.shares, self.commits, *self._summing, self.budgets, self.finds)
        return self.holds_exchanges and not any(others) and self.asked.keys() == {"exchanges"}

    def may_hide(self, read: Set[str]) -> bool:
        """Whether these rows may be hidden from here on, where others read the tables `read`."""
        others = (self.commits, *self._summing, self.budgets, self.finds)
        return self.holds_exchanges and not any(others) and not read & HIDDEN

    def hide(self, vocabulary: Coder) -> RowsByTable:
        """From here on no caller sees rows of HIDDEN: they come as integers, with texts of the vocabulary
        (`kdissect.tables.coded_rows`), and fetches and produces go back with their keys and holds. Returns the rows of
        them that were fed and have not come back."""
        self._hides = True
        left: dict[str, list[Rows]] = {}
        if self._tracker is not None:
            left = {name: [rows] for name, rows in self._tracker.hide().items()}
        if self._holder is not None:
            left.setdefault("fetches", []).append(self._holder.hide())
        if self._replicas is not None:
            left["produces"] = [self._replicas.hide(vocabulary)]
        return {name: Rows.together(parts) for name, parts in left.items()}

    @property
    def tables(self) -> dict[str, frozenset[str]]:
        """Tables and columns to read for it, besides what was asked for."""
        found: dict[str, frozenset[str]] = {}
        for reader in self._readers:
            for name, columns in reader.tables.items():
                if not TABLES[name].made.analysis:
                    found[name] = found.get(name, frozenset()) | (frozenset(columns) - TABLES[name].analysed)
        return found

    @property
    def fed(self) -> frozenset[str]:
        """The tables that `feed` works on; findings read further ones."""
        others = {readers.FINDINGS.name} | (set() if self.delivers else {readers.DELIVERIES.name})
        return frozenset(name for reader in self._readers if reader.name not in others for name in reader.tables)

    @property
    def messages(self) -> dict[tuple[int, int], frozenset[str]]:
        """Messages and paths to decode for it."""
        found: dict[tuple[int, int], frozenset[str]] = {}
        for reader in self._readers:
            for message, names in reader.messages.items():
                found[message] = found.get(message, frozenset()) | names
        return found

    @property
    def _readers(self) -> list[readers.Reader]:
        """The parts of the analysis that take part."""
        shards = self.finds or any(TABLES[name].made is By.SESSIONS for name in self.asked)
        parts = (
            (self.follows, readers.SESSIONS),
            (self.follows and shards, readers.SHARDS),
            (self.holds, readers.FETCH_HOLDS),
            (self.replicates, readers.PRODUCE_HOLDS),
            (self.holds_exchanges, readers.EXCHANGE_HOLDS),
            (self.shares, readers.SHARES),
            (self.commits, readers.COMMITS),
            (self.finds, readers.FINDINGS),
            (self.budgets, readers.BUDGET),
            (By.BUDGET in self._wanted, readers.BUDGET_TOPICS),
            (self.traffic, readers.TOPIC_TRAFFIC),
            (self.delivers or self.finds, readers.DELIVERIES),
            (self.transacts, readers.TRANSACTIONS),
            (self.traces, readers.TRACED),
        )
        return [reader for needed, reader in parts if needed]

    def awaits_rows(self, partitions: Rows) -> bool:
        """Whether replication time may become known for the Produce requests of these partitions, or for others that
        wait for them. Else no rows of `produces` need be made: exchanges with ACKS_KEY have all that is known."""
        from kdissect.analysis.holds.replication import replicated

        return replicated(partitions) or (self._replicas is not None and self._replicas.waiting > 0)

    @property
    def waiting(self) -> int:
        """Rows held back for the watermark."""
        waiting = 0 if self._tracker is None else self._tracker.waiting
        waiting += 0 if self._replicas is None else self._replicas.waiting
        return waiting + sum(len(block.codes) for block in self._exchanges)

    def rename_broker(self, old: str, new: str) -> None:
        """A broker is called otherwise in the rows that come from now on: its sessions and watermarks go on."""
        if self._tracker is not None:
            self._tracker.rename_broker(old, new)
        if self._replicas is not None:
            self._replicas.rename_broker(old, new)

    def sessions_alive(self) -> dict[str, int]:
        """Fetch sessions that are alive, by broker."""
        return {} if self._tracker is None else self._tracker.alive()

    def session_connections(self) -> npt.NDArray[np.int64]:
        """See `SessionTracker`."""
        return np.zeros(0, np.int64) if self._tracker is None else self._tracker.session_connections()

    def carried(self) -> CarriedStage:
        """The state that another stage for the same tables goes on from; this one is not to be used any more. If rows
        are hidden, the other one has to `hide` them, too."""
        from kdissect.analysis.holds.carried_state import CarriedStage

        return CarriedStage(
            self._none,
            None if self._tracker is None else self._tracker.carried(),
            None if self._holder is None else self._holder.carried(),
            None if self._replicas is None else self._replicas.carried(),
            None if self._committer is None else self._committer.carried(),
            list(self._exchanges),
            self._throttled,
            self._uses,
        )

    def go_on(self, before: CarriedStage) -> None:
        """Begins where another stage ended. To be called first."""
        self._none = before.empty
        if before.sessions is not None:
            self._tracker = self._new_tracker()
            self._tracker.go_on(before.sessions)
        if before.holds is not None:
            self._holder = self._new_holder()
            self._holder.go_on(before.holds)
        if before.replication is not None:
            self._replicas = self._new_replicas()
            self._replicas.go_on(before.replication)
        if before.commits is not None:
            self._committer = self._new_committer()
            self._committer.go_on(before.commits)
        self._exchanges.extend(before.exchanges)
        self._throttled, self._uses = before.throttled, before.uses

    def release(self) -> RowsByTable:
        """The exchanges whose hold is known and that wait for others of their block: what is carried is less without
        them."""
        settled = [part.with_holds() for part in self._split_blocks()] if self._exchanges else []
        return {"exchanges": Rows.together(settled)} if settled else {}

    def _split_blocks(self) -> list[HeldExchanges]:
        """Takes the exchanges whose hold is known out of the blocks; those that wait are one block."""
        from kdissect.analysis.holds.exchange_holds import HeldExchanges

        parts = [block.split() for block in self._exchanges]
        self._exchanges.clear()
        self._exchanges.append(HeldExchanges.join_blocks([rest for _, rest in parts]))
        return [settled for settled, _ in parts]

    def _new_tracker(self) -> SessionTracker:
        from kdissect.analysis.sessions.tracker import SessionTracker

        stays = "session_partitions" in self.asked
        return SessionTracker(stays=stays, waiting=self._most, prompt=self.prompt, hidden=self._hides)

    def _new_holder(self) -> HoldTracker:
        from kdissect.analysis.holds.fetch_holds import HoldTracker

        assert self._tracker is not None
        return HoldTracker(self._tracker.names, self._most, hidden=self._hides)

    def _new_replicas(self) -> ReplicationTracker:
        from kdissect.analysis.holds.replication import ReplicationTracker

        return ReplicationTracker(self._most, hidden=self._hides)

    def _new_committer(self) -> CommitTracker:
        from kdissect.analysis.committed_lag import CommitTracker

        return CommitTracker()

    def feed(
        self, rows: RowsByTable, messages: Messages | None = None, watermark: int = NO_WATERMARK,
        direct_fetches: Sequence[NamedFetches] = (), last: bool = False, complete: int | None = None,
    ) -> RowsByTable:  # fmt: skip
        """Rows of a block, and what is settled by them; of the `last` block with what `finish` gives.

        `rows`: by table, those that `tables` names, of one block, resolved; all rows of an exchange together.
        `watermark`: microseconds since the epoch; no later row has its request's last byte or its response's first one
        before it. `direct_fetches`: further fetches, next to those in `rows`, where fetches are hidden. `complete`: the
        watermark where some later row may lie before `watermark` all the same, because nobody waits for it any more.
        """
        self._none = {name: mine.without_rows() for name, mine in rows.items() if TABLES[name].is_analysed}
        complete = watermark if complete is None else complete
        return self._work(rows, messages or {}, watermark, complete, last=last, direct_fetches=direct_fetches)

    def finish(self) -> RowsByTable:
        """The rows that were held back, and the sessions that are open."""
        none = {name: Rows.of(SCHEMAS[name].empty_table()) for name, table in TABLES.items() if table.is_analysed}
        return self._work({**none, **self._none}, {}, NO_WATERMARK, NO_WATERMARK, last=True)

    def _work(
        self,
        rows: RowsByTable,
        messages: Messages,
        watermark: int,
        complete: int,
        last: bool,
        direct_fetches: Sequence[NamedFetches] = (),
    ) -> dict[str, Rows]:
        out: dict[str, Rows] = {}
        throttled = rows.get("exchanges")
        if self.replicates or self.holds_exchanges:
            throttled = self._learn_windows(Rows.of(throttled))
        if self.replicates:
            out["produces"] = self._replication(rows, watermark, complete, last)
        if self.commits:
            self._committer = self._committer or self._new_committer()
            read = as_tables({name: rows[name] for name in readers.COMMITS.tables})
            out["offset_commits"] = Rows.of(self._committer.feed(read, watermark))
        if self.follows:
            self._tracker = self._tracker or self._new_tracker()
            if (offered := rows.get("api_versions")) is not None:
                from kdissect.analysis.sessions.session_output import sharded_brokers

                self._tracker.learn(sharded_brokers(offered.table()))
            kept = None if self._holder is None else self._holder.held_back
            found = self._tracker.feed(rows["fetches"], rows["fetch_partitions"], watermark, direct_fetches, kept)
            out["fetches"], out["fetch_partitions"] = found.fetches, found.partitions
            out["fetch_sessions"], out["session_partitions"] = found.sessions, found.stays
            watermark = found.watermark
            if last:
                rest = self._tracker.finish()
                for name, more in (("fetch_sessions", rest.sessions), ("session_partitions", rest.stays)):
                    out[name] = Rows.together([out[name], more])
        if self.holds and self._tracker is not None:
            self._holder = self._holder or self._new_holder()
            offsets = rows.get("list_offsets")
            if offsets is not None and offsets.num_rows:
                from kdissect.analysis.holds.fetch_holds import with_instants

                offsets = with_instants(offsets, rows["exchanges"])
            fetches = self._holder.feed(found.rows, out["fetches"], throttled, offsets, watermark)
            if last:
                fetches = Rows.together([fetches, self._holder.finish()])
            out["fetches"] = fetches
        if self.holds_exchanges:
            apart = self._hides and not rows["produces"].num_rows
            told = [out["fetches"], out["produces"]]
            out["exchanges"] = self._exchange_holds(rows["exchanges"], messages, told, last, apart)
        if self.shares:
            if given := messages_by_name(messages):
                from kdissect.analysis.sessions.shares import uses

                self._uses.append(uses(rows["exchanges"].table(), given))
            if last:
                out["share_sessions"] = Rows.of(self._share_sessions())
        return out

    def _share_sessions(self) -> pa.Table:
        if not self._uses:
            return SCHEMAS["share_sessions"].empty_table()
        from kdissect.analysis.sessions.shares import sessions_of

        return sessions_of(self._uses)

    def _learn_windows(self, new: Rows) -> Rows:
        """Throttle windows of responses: they may matter to what comes. The rows that have one."""
        from kdissect.analysis.exchange_keys import key_names

        muting = new.reals("throttle_ms") > 0  # NaN is not
        fresh = new.filter(muting) if muting.any() else new.slice(0, 0)
        if fresh.num_rows or self._throttled.num_rows > MOST_WINDOWS:
            told = fresh.select([*key_names(new), "response_first_at", "throttle_ms"])
            kept = Rows.together([self._throttled, told])
            self._throttled = kept.slice(max(0, kept.num_rows - MOST_WINDOWS - told.num_rows))
        return fresh

    def _replication(self, rows: RowsByTable, watermark: int, complete: int, last: bool) -> Rows:
        """The rows of `produces` whose waits are known."""
        self._replicas = self._replicas or self._new_replicas()
        sent, stored = rows["produces"], Rows.of(rows.get("produce_partitions"))
        asked, fetched = rows["fetches"], rows["fetch_partitions"]
        found = self._replicas.feed(sent, stored, asked, fetched, self._throttled, watermark, complete)
        return Rows.together([found, self._replicas.finish()]) if last else found

    def _exchange_holds(
        self, new: Rows, messages: Messages, held_rows: Sequence[Rows], last: bool, apart: bool
    ) -> Rows:  # fmt: skip
        """The exchanges whose hold is known: Fetch and Produce wait for theirs in `held_rows`. `apart`: no rows of
        `produces` were made of these, see `awaits_rows`."""
        from kdissect.analysis.exchange_keys import keys_of
        from kdissect.analysis.holds.exchange_holds import (
            TOLD_ELSEWHERE,
            HeldExchanges,
            exchange_holds,
            hold_columns,
            name_apart,
            no_waits,
            told_holds,
        )

        given = {key: whole(table) for key, table in messages.items()}
        queue = self._exchanges
        if new.num_rows:
            codes, waits = exchange_holds(new, messages_by_name(given), self._throttled)
            api = new.ints("api_key")
            waits_for = tuple(np.flatnonzero(api == key) for key in TOLD_ELSEWHERE)
            if new.has(ACKS_KEY):
                if apart:
                    name_apart(new, waits_for[1], self._throttled, codes)
                    waits_for = waits_for[0], waits_for[1][:0]
                new = new.without([ACKS_KEY])
            queue.append(HeldExchanges(new, keys_of(new), codes, waits, waits_for))
        for where, held in enumerate(held_rows):
            if held.num_rows:
                keys, (holds, waits) = keys_of(held), told_holds(held)
                found = at = 0
                for block in queue:
                    count, at = block.settle(where, keys, holds, waits, at)
                    found += count
                for block in queue if found < len(holds) else ():
                    block.look_up(where, keys, holds, waits)
        done = []
        while queue and (last or not queue[0].count_waiting):
            done.append(queue.popleft().with_holds())
        if sum(len(block.codes) - block.count_waiting for block in queue) > HELD_ROWS:
            done += [settled.with_holds() for settled in self._split_blocks()]
        if not done:
            return new.slice(0, 0).with_arrays(hold_columns(np.zeros(0, np.int8), no_waits(np.zeros(0))))
        return Rows.together(done)


NAMES = {
    readers.SHARE_FETCH.key: "ShareFetch",
    readers.SHARE_ACKNOWLEDGE.key: "ShareAcknowledge",
}


def messages_by_name(messages: Messages) -> dict[tuple[str, str], pa.Table]:
    """Messages by API name and "request" or "response", as a notebook has them."""
    return {
        (NAMES[key], ("request", "response")[side]): whole(table)
        for (key, side), table in messages.items()
        if key in NAMES
    }
