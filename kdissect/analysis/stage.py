"""The analysis of one cluster as a stage behind the tables: what it reads, and what it fills in and adds.

    stage = Stage(asked)                      # table -> columns asked for (None: all)
    stage.tables, stage.messages              # what has to be read for it
    done = stage.feed(tables, messages, watermark)
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
from kdissect.arrays.arrow import Coder, ints, joined, reals, whole, with_columns
from kdissect.arrays.codes import Codes
from kdissect.arrays.dictionaries import join_tables
from kdissect.arrays.from_numpy import arrow_array
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

Tables = Mapping[str, pa.Table]
NO_WATERMARK = 2**63 - 1
HIDDEN = frozenset({"fetches", "fetch_partitions", "produces", "produce_partitions"})
"""Tables whose rows may be `Codes`."""
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
        self._like: dict[str, pa.Schema] = {}
        self._tracker: SessionTracker | None = None
        self._holder: HoldTracker | None = None
        self._replicas: ReplicationTracker | None = None
        self._committer: CommitTracker | None = None
        self._exchanges: deque[HeldExchanges] = deque()
        self._throttled: pa.Table | None = None
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
    def hidden(self) -> bool:
        """True if fetches, produces and their partitions are read only for why exchanges were held back. Then their
        rows may be `Codes` (`kdissect.tables.coded_rows`)."""
        others = (self.shares, self.commits, *self._summing, self.budgets, self.finds)
        return self.holds_exchanges and not any(others) and self.asked.keys() == {"exchanges"}

    def may_hide(self, read: Set[str]) -> bool:
        """Whether these rows may be `Codes` from here on, where others read the tables `read`."""
        others = (self.commits, *self._summing, self.budgets, self.finds)
        return self.holds_exchanges and not any(others) and not read & HIDDEN

    def hide(self, vocabulary: Coder) -> Tables:
        """From here on fetches, produces and their partitions come as `Codes` with texts of the vocabulary. Returns the
        rows of them that were fed and have not come back, which will come as codes, too."""
        left: dict[str, list[pa.Table]] = {}
        if self._tracker is not None:
            left = {name: [table] for name, table in self._tracker.hide().items()}
        if self._holder is not None:
            left.setdefault("fetches", []).append(self._holder.hide())
        if self._replicas is not None:
            left["produces"] = [self._replicas.hide(vocabulary)]
        return {name: pa.concat_tables(parts, promote_options="permissive") for name, parts in left.items()}

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

    def awaits_rows(self, partitions: pa.Table) -> bool:
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
        """The state that another stage for the same tables goes on from; this one is not to be used any more. If its
        rows are `Codes`, the other one has to `hide` them, too."""
        from kdissect.analysis.holds.carried_state import CarriedStage

        return CarriedStage(
            {name: schema.empty_table() for name, schema in self._like.items()},
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
        self._like = {name: table.schema for name, table in before.empty.items()}
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

    def release(self) -> Tables:
        """The exchanges whose hold is known and that wait for others of their block: what is carried is less without
        them."""
        settled = [part.with_holds() for part in self._split_blocks()] if self._exchanges else []
        return {"exchanges": join_tables(settled)} if settled else {}

    def _split_blocks(self) -> list[HeldExchanges]:
        """Takes the exchanges whose hold is known out of the blocks; those that wait are one block."""
        from kdissect.analysis.holds.exchange_holds import HeldExchanges

        parts = [block.split() for block in self._exchanges]
        self._exchanges.clear()
        self._exchanges.append(HeldExchanges.join_blocks([rest for _, rest in parts]))
        return [settled for settled, _ in parts]

    def _new_tracker(self) -> SessionTracker:
        from kdissect.analysis.sessions.tracker import SessionTracker

        return SessionTracker(stays="session_partitions" in self.asked, waiting=self._most, prompt=self.prompt)

    def _new_holder(self) -> HoldTracker:
        from kdissect.analysis.holds.fetch_holds import HoldTracker

        assert self._tracker is not None
        return HoldTracker(self._tracker.names, self._most)

    def _new_replicas(self) -> ReplicationTracker:
        from kdissect.analysis.holds.replication import ReplicationTracker

        return ReplicationTracker(self._most)

    def _new_committer(self) -> CommitTracker:
        from kdissect.analysis.committed_lag import CommitTracker

        return CommitTracker()

    def feed(
        self, tables: Tables, messages: Messages | None = None, watermark: int = NO_WATERMARK,
        direct_fetches: Sequence[NamedFetches] = (), last: bool = False, complete: int | None = None,
    ) -> Tables:  # fmt: skip
        """Rows of a block, and what is settled by them; of the `last` block with what `finish` gives.

        `tables`: those that `tables` names, rows of one block, resolved; all rows of an exchange together. `watermark`:
        microseconds since the epoch; no later row has its request's last byte or its response's first one before it.
        `direct_fetches`: further fetches, next to those in `tables`, where fetches are `hidden`. `complete`: the
        watermark where some later row may lie before `watermark` all the same, because nobody waits for it any more.
        """
        self._like = {
            name: table.schema
            for name, table in tables.items()
            if TABLES[name].is_analysed and not isinstance(table, Codes)
        }
        complete = watermark if complete is None else complete
        return self._work(tables, messages or {}, watermark, complete, last=last, direct_fetches=direct_fetches)

    def finish(self) -> Tables:
        """The rows that were held back, and the sessions that are open."""
        joined = [name for name, table in TABLES.items() if table.is_analysed]
        none = {name: self._like.get(name, SCHEMAS[name]).empty_table() for name in joined}
        return self._work(none, {}, NO_WATERMARK, NO_WATERMARK, last=True)

    def _work(
        self,
        tables: Tables,
        messages: Messages,
        watermark: int,
        complete: int,
        last: bool,
        direct_fetches: Sequence[NamedFetches] = (),
    ) -> dict[str, pa.Table]:
        out: dict[str, pa.Table] = {}
        throttled = tables.get("exchanges")
        if self.replicates or self.holds_exchanges:
            throttled = self._learn_windows(whole(throttled))
        if self.replicates:
            out["produces"] = self._replication(tables, watermark, complete, last)
        if self.commits:
            self._committer = self._committer or self._new_committer()
            out["offset_commits"] = self._committer.feed(tables, watermark)
        if self.follows:
            self._tracker = self._tracker or self._new_tracker()
            if (offered := tables.get("api_versions")) is not None:
                from kdissect.analysis.sessions.session_output import sharded_brokers

                self._tracker.learn(sharded_brokers(offered))
            hidden = isinstance(tables["fetches"], Codes)
            kept = None if self._holder is None else self._holder.held_back
            found = self._tracker.feed(tables["fetches"], tables["fetch_partitions"], watermark, direct_fetches, kept)
            out["fetches"], out["fetch_partitions"] = found.fetches, found.partitions
            out["fetch_sessions"], out["session_partitions"] = found.sessions, found.stays
            watermark = found.watermark
            if last:
                rest = self._tracker.finish()
                for name, more in (("fetch_sessions", rest.sessions), ("session_partitions", rest.stays)):
                    out[name] = pa.concat_tables([out[name], more])
        if self.holds and self._tracker is not None:
            self._holder = self._holder or self._new_holder()
            offsets = tables.get("list_offsets")
            if offsets is not None and offsets.num_rows:
                from kdissect.analysis.holds.fetch_holds import with_instants

                offsets = with_instants(whole(offsets), whole(tables["exchanges"]))
            shown = None if hidden else out["fetches"]
            fetches = self._holder.feed(found.rows, shown, throttled, offsets, watermark)
            if last:
                fetches = _both(fetches, self._holder.finish())
            out["fetches"] = fetches
        if self.holds_exchanges:
            told, sent = [out["fetches"], out["produces"]], tables["produces"]
            apart = isinstance(sent, Codes) and not sent.num_rows
            out["exchanges"] = self._exchange_holds(whole(tables["exchanges"]), messages, told, last, apart)
        if self.shares:
            if given := messages_by_name(messages):
                from kdissect.analysis.sessions.shares import uses

                self._uses.append(uses(whole(tables["exchanges"]), given))
            if last:
                out["share_sessions"] = self._share_sessions()
        return out

    def _share_sessions(self) -> pa.Table:
        if not self._uses:
            return SCHEMAS["share_sessions"].empty_table()
        from kdissect.analysis.sessions.shares import sessions_of

        return sessions_of(self._uses)

    def _learn_windows(self, new: pa.Table) -> pa.Table:
        """Throttle windows of responses: they may matter to what comes. The rows that have one."""
        from kdissect.analysis.exchange_keys import key_names

        muting = reals(new, "throttle_ms") > 0  # NaN is not
        fresh = new.filter(arrow_array(muting, pa.bool_())) if muting.any() else new.slice(0, 0)
        if self._throttled is None or fresh.num_rows or self._throttled.num_rows > MOST_WINDOWS:
            told = fresh.select([*key_names(new), "response_first_at", "throttle_ms"])
            kept = _both(self._throttled, told)
            self._throttled = kept.slice(max(0, kept.num_rows - MOST_WINDOWS - told.num_rows))
        return fresh

    def _replication(self, tables: Tables, watermark: int, complete: int, last: bool) -> pa.Table:
        """The rows of `produces` whose waits are known."""
        self._replicas = self._replicas or self._new_replicas()
        assert self._throttled is not None
        sent, stored = whole(tables["produces"]), whole(tables.get("produce_partitions"))
        asked, fetched = whole(tables["fetches"]), whole(tables["fetch_partitions"])
        found = self._replicas.feed(sent, stored, asked, fetched, self._throttled, watermark, complete)
        return _both(found, self._replicas.finish()) if last else found

    def _exchange_holds(
        self, new: pa.Table, messages: Messages, held_tables: Sequence[pa.Table], last: bool, apart: bool
    ) -> pa.Table:  # fmt: skip
        """The exchanges whose hold is known: Fetch and Produce wait for their rows in the tables `held_tables`.
        `apart`: no rows of `produces` were made of these, see `awaits_rows`."""
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

        assert self._throttled is not None
        given = {key: whole(table) for key, table in messages.items()}
        queue = self._exchanges
        if new.num_rows:
            codes, waits = exchange_holds(new, messages_by_name(given), self._throttled)
            api = ints(new, "api_key")
            waits_for = tuple(np.flatnonzero(api == key) for key in TOLD_ELSEWHERE)
            if ACKS_KEY in new.column_names:
                if apart:
                    name_apart(new, waits_for[1], self._throttled, codes)
                    waits_for = waits_for[0], waits_for[1][:0]
                new = new.drop_columns([ACKS_KEY])
            queue.append(HeldExchanges(new, keys_of(new), codes, waits, waits_for))
        for where, table in enumerate(held_tables):
            if table.num_rows:
                keys, (holds, waits) = keys_of(table), told_holds(table)
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
            return with_columns(new.slice(0, 0), hold_columns(np.zeros(0, np.int8), no_waits(np.zeros(0))))
        made = done[0]
        for more in done[1:]:
            made = _both(made, more)
        return made


def _both(a: pa.Table | None, b: pa.Table) -> pa.Table:
    """One behind the other."""
    if a is None or (b.num_rows and not a.num_rows):
        return b
    if isinstance(a, Codes):
        return joined(a, b)
    return join_tables([a, b]) if b.num_rows else a


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
