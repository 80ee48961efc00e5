"""Findings about what is absent: processes that stopped, a network that carried nothing, writes that never come."""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.analysis.findings import evidence as ev
from kdissect.analysis.findings import row_filters
from kdissect.analysis.findings.client_ways import LEAST_RTO_MS, copies_in, with_copies
from kdissect.analysis.findings.finders import EVERY_ROW, finder
from kdissect.analysis.findings.limits import Limits
from kdissect.analysis.findings.missing_packets import UnseenRequests, without_bare_packets
from kdissect.analysis.findings.network_gaps import long_on_the_way, network_gaps
from kdissect.analysis.findings.rules.access_findings import refused_connections
from kdissect.analysis.findings.standstills import stands_still, standstills
from kdissect.analysis.grouping import group
from kdissect.analysis.ledger.time_owners import GONE_MS, UNACKNOWLEDGED
from kdissect.arrays.arrow import MILLI, NULL_TIME, Flags, Int64s, earliest, ints, reals, times
from kdissect.arrays.from_numpy import arrow_array
from kdissect.schema.apikeys import ApiKey

SILENT_MS = 1000.0
"""Silence of a process that is felt: the longest poll of an idle consumer is 500 ms by default."""
TOGETHER_MS = 200.0
"""Processes that stop, or go on, within so long do so for one reason."""
HABIT = 20
"""Slots of time with requests of a client before its habits are known."""
RARE = 3
"""Gaps of a client that are as long as a quarter of its silence: more of them are its rhythm."""
WAITED = 0.3
"""Share of a gap that a request may have been under way: more of it is the broker's or the network's time."""
LOST_SEGMENTS = 3
"""Segments of a client that were sent again: each retransmission timer waits twice as long as the one before."""
RESENT = 2
"""Copies of an answer: one may be a tail loss probe (RFC 8985)."""
GONE_CONNECTIONS = 2
"""Connections of a host on which segments were sent again as often: of one alone it may be its own loss."""
ASKED_AGAIN = 3
"""Metadata requests without anything written between them: one follows each retry.backoff.ms up to a second."""
ASKING_MS = 2000.0
"""For at least so long: a producer that meets a new leader asks for a second."""
ASKING_APART_MS = 1500.0
"""From one of them to the next at most (retry.backoff.max.ms is a second)."""
BACKOFF_MS = 10_000.0
"""A client that lost its connection to a leader, or was refused, asks for another leader until it has connected:
reconnect.backoff.max.ms of librdkafka is 10 s."""


class Silence(NamedTuple):
    """A stretch without any request of a client; microseconds."""

    client: str
    asked: int
    """Its last request."""
    begin: int
    """Its last request, or the last answer to one."""
    end: int
    """Its next request."""
    sure: bool = True
    """No answer was due to it, it sent no request, and others went on. False: this is not known."""


def _as_long_as_a_silence(exchanges: pa.Table, limits: Limits) -> Any:
    """Exchanges that took as long as a silence that is felt."""
    return pc.greater_equal(exchanges["latency_ms"], SILENT_MS * WAITED)


def _cut_short(exchanges: pa.Table) -> Flags:
    """Whether the response of each exchange began and did not end; bool [rows]."""
    flags: Flags = ev.equal(exchanges, "status", "partial") & row_filters.unfinished(exchanges, "response")
    return flags


def _with_cut_response(exchanges: pa.Table, limits: Limits) -> Any:
    """Exchanges whose response began and did not end."""
    return arrow_array(_cut_short(exchanges))


OF_SILENCES = (row_filters.first_and_last_of_clients, _as_long_as_a_silence, _with_cut_response)
"""Exchanges that `silences` reads."""


def silences(exchanges: pa.Table, connections: pa.Table) -> list[Silence]:
    """Stretches of SILENT_MS and more in which a client sent nothing and was owed nothing, and which are rare for it.
    Not sure are those before which an answer is missing: it may be what the client waited for. Nor are those within
    which requests of the client may be missing, and those in a standstill."""
    groups, asked = group(exchanges, ["client_id"]), times(exchanges, "request_first_at")
    rows = groups.sort_rows(np.flatnonzero(asked != NULL_TIME), asked)
    some = _runs_with_rare_gaps(groups.code[rows], asked[rows])
    if not some:
        return []
    first, last = (times(exchanges, f"response_{name}_at") for name in ("first", "last"))
    answered = np.where(last != NULL_TIME, last, first)
    cut_short = _cut_short(exchanges)
    throttle = np.nan_to_num(reals(exchanges, "throttle_ms"))
    clients = groups.keys["client_id"].to_pylist()
    requests, still = UnseenRequests(exchanges, connections), standstills(exchanges)
    found = []
    for from_row, to_row in some:
        mine = rows[from_row:to_row]
        begun = asked[mine]
        gaps = np.diff(begun)
        if len(mine) < HABIT:
            continue
        client = clients[groups.code[mine[0]]]
        if client is None or client.startswith(row_filters.BROKERS):
            continue
        ended = answered[mine]
        due = int(begun[cut_short[mine]].min(initial=np.iinfo(np.int64).max))
        as_long = len(gaps) - np.searchsorted(np.sort(gaps), gaps / 4)
        for at in np.flatnonzero((gaps >= SILENT_MS * MILLI) & (as_long <= RARE)).tolist():
            end = int(begun[at + 1])
            before = ended[: at + 1]
            sure = due > begun[at] and not (before[begun[: at + 1] > begun[at] - gaps[at]] == NULL_TIME).any()
            muted = before + (throttle[mine[: at + 1]] * MILLI).astype(np.int64)  # KIP-219
            before = np.where(before == NULL_TIME, before, np.maximum(before, np.minimum(muted, end)))
            begin = max(int(begun[at]), int(before[before < end].max(initial=begun[at])))
            owed = bool((before >= end).any()) or begin - int(begun[at]) > WAITED * gaps[at] + 500 * MILLI
            if not owed and end - begin >= SILENT_MS * MILLI:
                sure &= not requests.may_be_missing(client, begin, end) and not stands_still(still, begin, end)
                found.append(Silence(client, int(begun[at]), begin, end, sure))
    return found


def _runs_with_rare_gaps(code: Int64s, at: Int64s) -> list[tuple[int, int]]:
    """The runs of equal codes whose largest gap is a silence, and rare for them: where each begins and ends. `at`:
    ascending within a run."""
    if not len(code):
        return []
    new = np.append(True, code[1:] != code[:-1])
    begins = np.flatnonzero(new)
    sizes = np.diff(np.append(begins, len(code)))
    gaps = np.where(new, 0, np.diff(at, prepend=at[0]))
    longest = np.maximum.reduceat(gaps, begins)
    as_long = np.add.reduceat(gaps >= np.repeat(longest / 4, sizes), begins)
    which = np.flatnonzero((longest >= SILENT_MS * MILLI) & (as_long <= RARE))
    return list(zip(begins[which].tolist(), (begins + sizes)[which].tolist(), strict=True))


@finder(exchanges=OF_SILENCES, connections=EVERY_ROW)
def silent_together(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Clients of one host that stopped at the same instant, while nothing was due to them.

    A process that stands still leaves its host's TCP alive. So where what brokers sent to that host was sent again and
    again meanwhile, on several connections, the network or the whole host was away. Where nothing was, the host was
    alive, and they went on at the same instant, the processes stood still.
    """
    exchanges, connections = ev.get(tables, "exchanges"), ev.get(tables, "connections")
    spans = sorted((one for one in silences(exchanges, connections) if one.sure), key=lambda one: one.begin)
    if not spans:
        return []
    hosts, answers = _hosts(connections), _Answers(exchanges, connections)
    found = []
    while spans:
        first = spans[0]
        near = WAITED * (first.end - first.begin)
        together = [
            one
            for one in spans
            if hosts.get(one.client) == hosts.get(first.client) is not None
            and abs(one.begin - first.begin) <= near
            and one.end - first.begin >= first.end - first.begin - near
        ]
        spans = [one for one in spans if one not in together and one is not first]
        host, clients = hosts.get(first.client), sorted({one.client for one in together})
        if host is None:
            continue
        begin, since = min(one.begin for one in together), max(one.asked for one in together)
        back, end = min(one.end for one in together), max(one.end for one in together)
        edges = sorted({instant for one in together for instant in (one.asked, one.end)})
        condition = ev.both(
            ev.among("client_id", clients), f"request_first_at in ({', '.join(map(ev.instant, edges))})"
        )
        values: dict[str, Any] = {"clients": clients, "host": host}
        unacknowledged = max(
            _sent_again(connections, host, begin, back, copies_in((back - begin) / MILLI)),
            answers.sent_again(ev.equal(connections, "client_ip", host), begin, back),
        )
        if unacknowledged >= GONE_CONNECTIONS:
            found += ev.finding(
                tables, "network_silent", ev.HIGH, "exchanges", condition, values | {"connections": unacknowledged},
                case="host", first_at=since, last_at=back,
            )  # fmt: skip
        elif (
            len(clients) > 1
            and _sent_again(connections, host, begin, back, 1) < GONE_CONNECTIONS
            and _alive(exchanges, connections, host, begin, back)
            and end - back <= TOGETHER_MS * MILLI
            and _others_went_on(exchanges, clients, begin, back)
            and all(_stayed(connections, client, begin, back) for client in clients)
        ):
            values |= {"took": (back - since) / MILLI, "back": back}
            found += ev.finding(
                tables, "clients_paused_together", ev.MEDIUM, "exchanges", condition, values, first_at=since,
                last_at=end,
            )  # fmt: skip
    return found


def _sent_again(connections: pa.Table, host: str, begin: int, end: int, copies: int) -> int:
    """On how many connections of a host, open all the time, so many segments were sent again."""
    mine = ev.equal(connections, "client_ip", host) & with_copies(connections, copies)
    mine &= (times(connections, "started_at") <= begin) & (times(connections, "ended_at") >= end)
    return int(mine.sum())


class _Answers:
    """Requests and answers of connections by their row in `connections`, put in order once."""

    def __init__(self, exchanges: pa.Table, connections: pa.Table) -> None:
        owner = ev.owners(exchanges, connections)
        asked, answered = times(exchanges, "request_first_at"), times(exchanges, "response_first_at")
        order = np.lexsort([asked, owner])
        self._asked, self._answered = asked[order], answered[order]
        self._starts = np.searchsorted(owner[order], np.arange(connections.num_rows + 1))
        self._lost = ints(connections, "lost_segments", 0)
        self._copied = with_copies(connections, 1)

    def of(self, row: int) -> tuple[Int64s, Int64s]:
        """When the requests of a connection came, in order, and their answers."""
        own = slice(self._starts[row], self._starts[row + 1])
        return self._asked[own], self._answered[own]

    def sent_again(self, of_host: Flags, begin: int, end: int) -> int:
        """On how many connections `of_host` (bool [connections]) a broker answered between two instants, and sent that
        answer again, as often as TCP's timers do until the next request came: RESENT times or more. 0 if segments were
        sent again on a connection without an answer in that time: the host may lose some all the time."""
        found = 0
        for row in np.flatnonzero(of_host & self._copied).tolist():
            requests, answers = self.of(row)
            answers = answers[(answers > begin) & (answers < end)]
            if not len(answers):
                return 0
            following = np.append(requests, np.iinfo(np.int64).max)[np.searchsorted(requests, answers, side="right")]
            wait = int((np.minimum(following, end) - answers).max())
            found += RESENT <= copies_in(wait / MILLI) <= self._lost[row]
        return int(found)


def _alive(exchanges: pa.Table, connections: pa.Table, host: str, begin: int, end: int) -> bool:
    """Whether a host took part while clients of it sent nothing: another one of its clients sent a request, or it
    acknowledged an answer. That answer came a retransmission timer after the host's last request, and as long before
    the end, and its connection sent no segment again."""
    asked, answered = times(exchanges, "request_first_at"), times(exchanges, "response_first_at")
    owner = ev.owners(exchanges, connections)
    own = np.append(ev.equal(connections, "client_ip", host), False)[owner]
    last = int(asked[own & (asked < end)].max(initial=begin))
    if last - begin >= WAITED * (end - begin):
        return True
    calm = np.append(ints(connections, "lost_segments", 0) == 0, False)[owner]
    timer = int(LEAST_RTO_MS * MILLI)
    return bool((own & calm & (answered >= last + timer) & (answered <= end - timer)).any())


def _stayed(connections: pa.Table, client: str, begin: int, end: int) -> bool:
    """Whether a connection of a client was open all the time: one that closed all and came back was started again."""
    mine = ev.equal(connections, "client_id", client)
    mine &= (times(connections, "started_at") <= begin) & (times(connections, "ended_at") >= end)
    return bool(mine.any())


def _others_went_on(exchanges: pa.Table, clients: list[str], begin: int, end: int) -> bool:
    """Whether other clients sent requests or were answered meanwhile, or there are none: where all stand still, the
    capture may have."""
    asked, answered = times(exchanges, "request_first_at"), times(exchanges, "response_first_at")
    others = ~pc.is_in(exchanges["client_id"].cast(pa.string()), pa.array(clients)).to_numpy()
    others &= asked != NULL_TIME
    inside = others & (((asked > begin) & (asked < end)) | ((answered > begin) & (answered < end)))
    return bool(inside.any()) or not bool(others.any())


def _hosts(connections: pa.Table) -> dict[str, str]:
    """The address of each client id that comes from one address."""
    found: dict[str, set[str]] = {}
    for client, ip in zip(connections["client_id"].to_pylist(), connections["client_ip"].to_pylist(), strict=True):
        if client is not None and ip is not None:
            found.setdefault(client, set()).add(ip)
    return {client: next(iter(ips)) for client, ips in found.items() if len(ips) == 1}


@finder(exchanges=long_on_the_way, connections=EVERY_ROW)
def unacknowledged(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Pairs of hosts between which what was sent was not acknowledged for GONE_MS and more."""
    found = []
    for gap in network_gaps(ev.get(tables, "exchanges"), ev.get(tables, "connections")):
        ids, brokers = ev.names(gap.rows["connection_id"]), ev.names(gap.rows["broker"])
        values = {
            "clients": ev.names(gap.rows["client_id"]), "client_ip": gap.client_ip, "brokers": brokers,
            "broker_ip": gap.broker_ip, "connections": ids,
        }  # fmt: skip
        condition = ev.both(
            ev.among("connection_id", ids), f"network_ms >= {GONE_MS:g}", ev.among("network_kind", UNACKNOWLEDGED),
            f"request_first_at >= {ev.instant(gap.begin)}", f"request_first_at <= {ev.instant(gap.end)}",
        )  # fmt: skip
        found += ev.finding(
            tables, "network_silent", ev.HIGH if len(ids) > 1 else ev.MEDIUM, "exchanges", condition, values,
            case="acknowledgements", first_at=gap.begin, last_at=gap.end,
            broker=brokers[0] if len(brokers) == 1 else None,
        )  # fmt: skip
    return found


class Asking(NamedTuple):
    """A stretch in which a client asked for nothing but metadata, again and again, without an error."""

    client: str
    writes: bool
    """It is a producer, else it fetches."""
    begin: int
    """Its first Metadata request; microseconds."""
    end: int
    """Its last one."""
    until: int
    """Its next request of another API, where that follows within ASKING_APART_MS, else `end`."""
    requests: int


def _asking(exchanges: pa.Table) -> list[Asking]:
    """Stretches of ASKING_MS and more in which clients that write or fetch asked for nothing but metadata."""
    key, at = ints(exchanges, "api_key"), times(exchanges, "request_first_at")
    groups = group(exchanges, ["client_id"])
    clients = groups.keys["client_id"].to_pylist()
    writes = groups.count(np.isin(key, (ApiKey.PRODUCE, ApiKey.INIT_PRODUCER_ID))) > 0
    used = writes | (groups.count(key == ApiKey.FETCH) > 0)
    rows = np.flatnonzero(at != NULL_TIME)
    rows = groups.sort_rows(rows, at)
    code, instants = groups.code[rows], at[rows]
    asked = (key[rows] == ApiKey.METADATA) & (ints(exchanges, "error_code", -1)[rows] == 0)
    follows = asked[1:] & asked[:-1] & (code[1:] == code[:-1]) & (np.diff(instants) <= ASKING_APART_MS * MILLI)
    first, last = np.flatnonzero(asked & ~np.append(False, follows)), np.flatnonzero(asked & ~np.append(follows, False))
    long = (last - first >= ASKED_AGAIN - 1) & (instants[last] - instants[first] >= ASKING_MS * MILLI)
    found = []
    for one, other in zip(first[long].tolist(), last[long].tolist(), strict=True):
        client = clients[code[one]]
        if client is None or client.startswith(row_filters.BROKERS) or not used[code[one]]:
            continue
        begin, end = int(instants[one]), int(instants[other])
        after = int(instants[other + 1]) if other + 1 < len(rows) and code[other + 1] == code[one] else end
        until = after if after - end <= ASKING_APART_MS * MILLI else end
        found.append(Asking(client, bool(writes[code[one]]), begin, end, until, other - one + 1))
    return found


@finder(
    exchanges=(row_filters.first_and_last_of_clients, row_filters.of_api(ApiKey.METADATA)),
    connections=EVERY_ROW,
    capture_quality=EVERY_ROW,
)
def asking_in_vain(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Producers that ask for metadata again and again, are answered without an error, and write nothing meanwhile.

    A broker that refused them, or closed their connection, is a reason of its own. So a capture has to show that, from
    BACKOFF_MS before they ask, or from their beginning on.
    """
    asked = _asking(ev.get(tables, "exchanges"))
    if not asked:
        return []
    connections = ev.get(tables, "connections")
    hosts, ended = _hosts(connections), _ends(connections)
    filtered = without_bare_packets(connections, ev.get(tables, "capture_quality"))
    blind = set(ev.names(connections["client_id"].filter(arrow_array(filtered))))
    met = ints(connections, "start_seen", 0) == 0
    begun_before = set(ev.names(connections["client_id"].filter(arrow_array(met))))
    since = earliest(times(connections, "started_at"))
    stretches: dict[str, list[Asking]] = {}
    for one in asked:
        lost = ended.get(hosts.get(one.client, ""), np.empty(0, np.int64))
        held_up = ((lost >= one.begin - BACKOFF_MS * MILLI) & (lost <= one.end)).any()
        early = since is not None and one.begin - BACKOFF_MS * MILLI < since and one.client in begun_before
        if one.writes and not held_up and not early and one.client not in blind:
            stretches.setdefault(one.client, []).append(one)
    found = []
    for client, mine in stretches.items():
        begin, end = mine[0].begin, mine[-1].end
        condition = _metadata_requests(client, begin, end)
        # Those between two stretches count, too.
        values = {"longest": max(one.end - one.begin for one in mine) / MILLI}
        found += ev.finding(
            tables, "metadata_in_vain", ev.MEDIUM, "exchanges", condition, values, client_id=client, first_at=begin,
            last_at=end,
        )  # fmt: skip
    return found


@finder(exchanges=(row_filters.first_and_last_of_clients, row_filters.of_api(ApiKey.METADATA)), connections=EVERY_ROW)
def held_up(tables: ev.Tables, limits: Limits) -> list[ev.Finding]:
    """Clients that asked for nothing but metadata after a broker had refused their address or closed a connection of
    theirs. They had no leader to write to or to read from."""
    exchanges, connections = ev.get(tables, "exchanges"), ev.get(tables, "connections")
    stretches = _asking(exchanges)
    if not stretches:
        return []
    hosts = _hosts(connections)
    refused = refused_connections(connections)
    over = ev.equal(connections, "end_reason", "rst") | ev.equal(connections, "end_reason", "fin")
    ended, started = times(connections, "ended_at"), times(connections, "started_at")
    over &= (ended != NULL_TIME) & (started != NULL_TIME)
    found = []
    for one in stretches:
        own = ev.equal(connections, "client_id", one.client)
        if hosts.get(one.client) is not None:
            own |= refused & ev.equal(connections, "client_ip", hosts[one.client])
        lost = own & over & (ended >= one.begin - BACKOFF_MS * MILLI) & (ended <= one.end) & (started <= one.end)
        brokers = ev.names(connections["broker"].filter(arrow_array(lost)))
        if not brokers:
            continue
        values = {"brokers": brokers, "refused": bool((lost & refused).any())}
        found += ev.finding(
            tables, "no_leader", ev.MEDIUM, "exchanges", _metadata_requests(one.client, one.begin, one.end), values,
            case="writes" if one.writes else "reads", client_id=one.client, first_at=one.begin, last_at=one.until,
            broker=brokers[0] if len(brokers) == 1 else None,
        )  # fmt: skip
    return found


def _metadata_requests(client: str, begin: int, end: int) -> str:
    """The filter for a client's Metadata requests without an error between two instants."""
    return ev.both(
        ev.equals("client_id", client), "api = 'Metadata' and error_code = 0",
        f"request_first_at >= {ev.instant(begin)} and request_first_at <= {ev.instant(end)}",
    )  # fmt: skip


def _ends(connections: pa.Table) -> dict[str, Int64s]:
    """When connections of each address ended, or were refused: (client address) -> instants."""
    over = ev.equal(connections, "end_reason", "rst") | ev.equal(connections, "end_reason", "fin")
    at = times(connections, "ended_at")
    found: dict[str, list[int]] = {}
    for row in np.flatnonzero(over & (at != NULL_TIME)).tolist():
        found.setdefault(str(connections["client_ip"][row].as_py()), []).append(int(at[row]))
    return {ip: np.array(when, np.int64) for ip, when in found.items()}


FINDERS = (unacknowledged, silent_together, asking_in_vain, held_up)
