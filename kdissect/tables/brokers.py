"""Which broker is behind an address: node ids from every message that tells.

Claims are (node id, host, port) triples out of cluster metadata, coordinator answers, node endpoints, registrations and
the like, plus connections whose client says itself which node it talks to (ApiVersions v5). They are collected over the
whole capture and used at the end, in this order:

1. The client of a connection to that `ip:port` said the node id.
2. A claim whose host is that ip, with that port.
3. A claim whose host is a name (`localhost`, `broker-1.example`): names cannot be resolved from a capture, so the
   port decides, if all claims for that port (names and addresses alike) agree on one node id and only one broker
   address of the capture that may be of the same cluster uses the port.

Where the claims of a step disagree about the node id, or no step applies, the broker stays `ip:port`. Capture is
part of everything: two captures may show two clusters. A claim comes from a cluster (`kdissect.tables.clusters`), and
names no broker of another one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.arrays.arrow import distinct
from kdissect.arrays.dictionaries import coded, no_values
from kdissect.schema.apikeys import ApiKey
from kdissect.tables import clusters
from kdissect.tables.address_texts import behind_separator
from kdissect.tables.clusters import Clusters, answered_clusters
from kdissect.tables.declaration.model import CODE, TEXT
from kdissect.tables.identity import SEPARATOR, endpoint
from kdissect.tables.nest import Level, numbers
from kdissect.tables.table_block import Block

SOURCES: tuple[tuple[int, int, str, str, str, str], ...] = (
    # API key, side, path of the list ("" none), then node id, host and port below it ("^": of the level above)
    (ApiKey.METADATA, 1, "brokers", "node_id", "host", "port"),
    (ApiKey.FIND_COORDINATOR, 1, "", "node_id", "host", "port"),  # v0-3
    (ApiKey.FIND_COORDINATOR, 1, "coordinators", "node_id", "host", "port"),  # v4+
    (ApiKey.DESCRIBE_CLUSTER, 1, "brokers", "broker_id", "host", "port"),
    (ApiKey.PRODUCE, 1, "node_endpoints", "node_id", "host", "port"),
    (ApiKey.FETCH, 1, "node_endpoints", "node_id", "host", "port"),
    (ApiKey.SHARE_FETCH, 1, "node_endpoints", "node_id", "host", "port"),
    (ApiKey.SHARE_ACKNOWLEDGE, 1, "node_endpoints", "node_id", "host", "port"),
    (ApiKey.VOTE, 1, "node_endpoints", "node_id", "host", "port"),
    (ApiKey.BEGIN_QUORUM_EPOCH, 1, "node_endpoints", "node_id", "host", "port"),
    (ApiKey.END_QUORUM_EPOCH, 1, "node_endpoints", "node_id", "host", "port"),
    (ApiKey.FETCH_SNAPSHOT, 1, "node_endpoints", "node_id", "host", "port"),
    (ApiKey.LEADER_AND_ISR, 0, "live_leaders", "broker_id", "host_name", "port"),
    (ApiKey.UPDATE_METADATA, 0, "live_brokers", "id", "v0_host", "v0_port"),  # v0
    (ApiKey.UPDATE_METADATA, 0, "live_brokers/endpoints", "^id", "host", "port"),  # v1+
    (ApiKey.DESCRIBE_QUORUM, 1, "nodes/listeners", "^node_id", "host", "port"),
    (ApiKey.BROKER_REGISTRATION, 0, "listeners", "^broker_id", "host", "port"),
    (ApiKey.CONTROLLER_REGISTRATION, 0, "listeners", "^controller_id", "host", "port"),
    (ApiKey.ADD_RAFT_VOTER, 0, "listeners", "^voter_id", "host", "port"),
    (ApiKey.UPDATE_RAFT_VOTER, 0, "listeners", "^voter_id", "host", "port"),
    (ApiKey.UPDATE_RAFT_VOTER, 1, "", "current_leader.leader_id", "current_leader.host", "current_leader.port"),
)
"""Every place where a message names a node with its address."""

CODED = pa.dictionary(pa.int32(), TEXT)


def claim_paths() -> dict[tuple[int, int], set[str]]:
    """The message paths that claims, and what joins them to clusters, are read from."""
    paths = clusters.cluster_paths()
    paths[ApiKey.API_VERSIONS, 0] = {"node_id"}
    for key, side, levels, *names in SOURCES:
        steps = levels.split("/") if levels else []
        for name in names:
            base = steps[:-1] if name.startswith("^") else steps
            paths.setdefault((key, side), set()).add(".".join([*base, name.removeprefix("^")]))
    return paths


@dataclass(slots=True, eq=False, repr=False)
class Brokers:
    """Claims of a run, by capture name."""

    claims: dict[tuple[str, str, int], set[tuple[int, str]]] = field(default_factory=dict)
    """(capture, host, port) -> node ids, each with the ClusterId that the message carries, else with the unresolved
    broker on whose connection the message was."""
    told: dict[str, set[int]] = field(default_factory=dict)
    """Unresolved broker (`capture<TAB>ip:port`) -> node ids that its clients said."""
    addresses: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    """(capture, port) -> addresses of brokers that use it."""
    clusters: Clusters = field(default_factory=Clusters)
    """What joins addresses to clusters besides the claims."""
    given: dict[str, str] | None = None
    """Unresolved broker -> the name that `resolve` gave last; None: nobody asks."""
    changes: int = 0
    """How often something new was learned."""
    _joined: tuple[int, dict[str, str], dict[str, str]] | None = None
    """`cluster_of` by what was known after so many changes, and the clusters of captures that have a single one."""
    _named: tuple[int, dict[str, str], dict[str, str]] | None = None
    """`names` and `names_of` by what was known after so many changes: rows are resolved piece by piece."""
    given_clusters: dict[str, str | None] = field(default_factory=dict)
    """Unresolved broker -> the cluster that `resolve_clusters` gave last, if anybody asks."""

    @property
    def names_unchanged(self) -> bool:
        """Every name and cluster that was given is what would be given now."""
        if self.given is None:
            return True
        clusters = self.cluster_of() if self.given_clusters else {}
        return self.names_of(self.given) == self.given and all(
            clusters.get(text) == cluster for text, cluster in self.given_clusters.items()
        )

    def feed(self, block: Block) -> None:
        """Collect the claims of a block's messages, and the brokers that its exchanges go to."""
        texts = block.directory.brokers.texts
        for key, side, levels, node, host, port in SOURCES:
            if (key, side) not in block.done.messages:
                continue
            sources = block.directory.broker_codes(block.done.conn[block.bodies(key, side)])
            root = block.nest(key, side)
            words, named = answered_clusters(block, key, side)
            for source, word, claim in self._read(root, levels, node, host, port, sources, named):
                capture = texts[source].partition(SEPARATOR)[0]
                self.claim(capture, *claim, texts[source] if word < 0 else words[word])
        self.clusters.feed(block)
        self._listen(block)

    def claim(self, capture: str, node: int, host: str, port: int, origin: str) -> None:
        """One message says: this node is at host and port. `origin`: as in `claims`."""
        claims = self.claims.setdefault((capture, _plain(host), port), set())
        if (node, origin) not in claims:
            claims.add((node, origin))
            self.changes += 1

    def _read(
        self, root: Level, levels: str, node: str, host: str, port: str, sources: np.ndarray, clusters: np.ndarray
    ) -> Iterable[tuple[int, int, tuple[int, str, int]]]:
        level = above = root
        for step in levels.split("/") if levels else ():
            above, level = level, level.each(step)
        if not len(level):
            return
        nodes = numbers(level.up(above.column(node[1:], CODE)) if node.startswith("^") else level.column(node, CODE))
        ports = level.ints(port)
        hosts = level.column(host, TEXT).dictionary_encode()
        texts = hosts.dictionary.to_pylist()
        good = (nodes >= 0) & (ports > 0) & np.asarray(hosts.is_valid())
        source, cluster = sources[level.body], clusters[level.body]
        columns = np.stack([source, cluster, nodes, numbers(hosts.indices), ports], axis=1)[good].astype(np.int64)
        for place, word, number, text, at in distinct(columns).tolist():
            if texts[text]:
                yield place, word, (number, texts[text], at)

    def _listen(self, block: Block) -> None:
        """Brokers in use, and node ids which clients say themselves."""
        directory = block.directory
        codes = directory.broker_codes(block.done.conn)
        present = np.zeros(len(directory.brokers.texts), np.bool_)
        present[codes] = True
        for code in np.flatnonzero(present):
            self.serves(directory.brokers.texts[code])
        bodies = block.bodies(ApiKey.API_VERSIONS, 0)
        if len(bodies):
            nodes = block.nest(ApiKey.API_VERSIONS, 0).ints("node_id")
            pairs = np.stack([codes[bodies], nodes], axis=1)[nodes >= 0]
            for code, node in distinct(pairs).tolist():
                self.say(directory.brokers.texts[code], node)

    def say(self, unresolved: str, node: int) -> None:
        """A client of a broker (`capture<TAB>ip:port`) says which node it is."""
        nodes = self.told.setdefault(unresolved, set())
        if node not in nodes:
            nodes.add(node)
            self.changes += 1

    def serves(self, unresolved: str) -> None:
        """A broker (`capture<TAB>ip:port`) that connections go to."""
        capture, place = unresolved.split(SEPARATOR)
        ip, port = split(place)
        ips = self.addresses.setdefault((capture, port), set())
        if ip not in ips:
            ips.add(ip)
            self.changes += 1

    def clear(self) -> None:
        """Forget everything."""
        self.changes += 1
        self.clusters.clear()
        self.claims.clear()
        self.told.clear()
        self.addresses.clear()

    def merge(self, other: Brokers) -> None:
        """Add what another part of the same work has collected."""
        self.changes += 1
        self.clusters.merge(other.clusters)
        for claim, told in other.claims.items():
            self.claims.setdefault(claim, set()).update(told)
        for broker, nodes in other.told.items():
            self.told.setdefault(broker, set()).update(nodes)
        for place, ips in other.addresses.items():
            self.addresses.setdefault(place, set()).update(ips)

    def names(self) -> Mapping[str, str]:
        """Unresolved broker -> node id as text, or `ip:port`: what is known now."""
        return self._names_by_now()[0]

    def _names_by_now(self) -> tuple[dict[str, str], dict[str, str]]:
        changes = self.changes + self.clusters.changes
        if self._named is None or self._named[0] != changes:
            names = self._make_names()
            self._named = changes, names, self._claimed_names(names)
        return self._named[1:]

    def _make_names(self) -> dict[str, str]:
        clusters = self.cluster_of()
        by_port: dict[tuple[str, int], set[tuple[int, str]]] = {}
        named: set[tuple[str, int]] = set()
        for (capture, host, port), claims in self.claims.items():
            by_port.setdefault((capture, port), set()).update(claims)
            if not is_address(host):
                named.add((capture, port))
        out: dict[str, str] = {}
        for (capture, port), ips in self.addresses.items():
            for ip in ips:
                unresolved = f"{capture}{SEPARATOR}{endpoint(ip, port)}"
                steps = [self.told.get(unresolved), self._nodes(unresolved, (capture, ip, port), self.claims, clusters)]
                if (capture, port) in named and self._is_only_on_port(capture, port, ip, clusters):
                    steps.append(self._nodes(unresolved, (capture, port), by_port, clusters))
                nodes = next((step for step in steps if step), set())
                out[unresolved] = str(next(iter(nodes))) if len(nodes) == 1 else endpoint(ip, port)
        return out

    def names_of(self, brokers: Iterable[str]) -> dict[str, str]:
        """The names of these unresolved brokers, `ip:port` of those without one; resolved ones stay."""
        known = self._names_by_now()[1]
        return {text: known.get(text) or text.rpartition(SEPARATOR)[2] for text in brokers}

    def _claimed_names(self, names: Mapping[str, str]) -> dict[str, str]:
        """As `names`, and of addresses that never said anything (they refused every connection) those that a claim for
        the very address gives."""
        names, clusters = dict(names), self.cluster_of()
        for capture, host, port in self.claims:
            if not is_address(host) or host in self.addresses.get((capture, port), ()):
                continue
            unresolved = f"{capture}{SEPARATOR}{endpoint(host, port)}"
            nodes = self._nodes(unresolved, (capture, host, port), self.claims, clusters)
            if len(nodes) == 1:
                names[unresolved] = str(next(iter(nodes)))
        return names

    def _is_only_on_port(self, capture: str, port: int, ip: str, clusters: Mapping[str, str]) -> bool:
        """Whether no other broker address of the capture that may be of the same cluster uses the port."""
        own = clusters.get(f"{capture}{SEPARATOR}{endpoint(ip, port)}")
        for other in self.addresses[capture, port] - {ip}:
            cluster = clusters.get(f"{capture}{SEPARATOR}{endpoint(other, port)}")
            if own is None or cluster is None or own == cluster:
                return False
        return True

    def _nodes(
        self, address: str, place: Any, claims: Mapping[Any, set[tuple[int, str]]], clusters: Mapping[str, str]
    ) -> set[int]:
        """The nodes that claims put at a place, but for those out of other clusters than the address's."""
        found = claims.get(place, set())
        cluster = clusters.get(address)
        if cluster is None:
            return {node for node, _ in found}
        return {node for node, origin in found if _cluster_of(origin, clusters) in (None, cluster)}

    def cluster_of(self) -> Mapping[str, str]:
        """Unresolved broker -> its ClusterId, as far as it is known now."""
        return self._joined_by_now()[0]

    def _joined_by_now(self) -> tuple[dict[str, str], dict[str, str]]:
        changes = self.changes + self.clusters.changes
        if self._joined is None or self._joined[0] != changes:
            clusters = self._join()
            within: dict[str, set[str]] = {}
            for address, cluster in clusters.items():
                within.setdefault(address.partition(SEPARATOR)[0] + SEPARATOR, set()).add(cluster)
            alone = {capture: next(iter(found)) for capture, found in within.items() if len(found) == 1}
            self._joined = changes, clusters, alone
        return self._joined[1:]

    def _join(self) -> dict[str, str]:
        if not (self.clusters.ids or self.clusters.expected):
            return {}
        listed: dict[str, set[str]] = {}
        links: dict[str, set[str]] = {}
        known = self.clusters.ids
        for (capture, host, port), claims in self.claims.items():
            ips = {host} if is_address(host) else self.addresses.get((capture, port), set())
            addresses = {f"{capture}{SEPARATOR}{endpoint(ip, port)}" for ip in ips}
            for _, origin in claims:
                own = known.get(origin, set()) if SEPARATOR in origin else {origin}
                possible = [one for one in addresses if not own or not known.get(one, own).isdisjoint(own)]
                if len(possible) != 1:
                    continue  # a name: any of these addresses may be meant
                address = possible[0]
                if SEPARATOR not in origin:
                    listed.setdefault(address, set()).add(origin)
                elif origin != address:
                    links.setdefault(address, set()).add(origin)
                    links.setdefault(origin, set()).add(address)
        return self.clusters.assign_clusters(listed, links)

    def resolve(self, column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """A `broker` column as builders leave it, with node ids where known now, as a dictionary column."""
        if isinstance(column, pa.ChunkedArray):
            return pa.chunked_array([self.resolve(chunk) for chunk in column.chunks], CODED)
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        texts = column.dictionary
        names = _looked_up(texts, self._names_by_now()[1], behind_separator(texts))
        if self.given is not None:
            self.given.update(_pair_names(texts.to_pylist(), names.to_pylist()))
        return _renamed(column, names)

    def resolve_clusters(self, column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """A `cluster` column as builders leave it, unresolved brokers, with ClusterIds where known now, as a dictionary
        column. `capture<TAB>` alone stands for the one cluster of a whole capture set."""
        if isinstance(column, pa.ChunkedArray):
            return pa.chunked_array([self.resolve_clusters(chunk) for chunk in column.chunks], CODED)
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        texts = column.dictionary
        if self.given is None and not self.cluster_of() and _all_unresolved(texts):
            return no_values(len(column), CODED)
        clusters = [self.cluster_named(text) for text in texts.to_pylist()]
        if self.given is not None:
            self.given_clusters.update(_pair_names(texts.to_pylist(), clusters))
        return _renamed(column, pa.array(clusters, TEXT))

    def cluster_named(self, text: str | None) -> str | None:
        """The cluster that stands for an unresolved broker, a capture (`capture<TAB>`), or for itself."""
        if text is None or SEPARATOR not in text:
            return text
        clusters, alone = self._joined_by_now()
        return alone.get(text) if text.endswith(SEPARATOR) else clusters.get(text)


def _all_unresolved(texts: pa.Array) -> bool:
    unresolved: bool = pc.all(pc.match_substring(texts, SEPARATOR), min_count=0).as_py()
    return unresolved


def _looked_up(texts: pa.Array, values: Mapping[str, str | None], otherwise: pa.Array) -> pa.Array:
    """What is known of each text, else the text of `otherwise` in its place. A piece has few of all values."""
    if not values:
        return otherwise
    return pc.coalesce(pa.array([values.get(text) for text in texts.to_pylist()], TEXT), otherwise)


def _pair_names(texts: Sequence[str | None], names: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """The unresolved ones of texts, each with the name that it was given."""
    return ((text, name) for text, name in zip(texts, names, strict=True) if text and SEPARATOR in text)


def _renamed(column: pa.DictionaryArray, names: pa.Array) -> pa.DictionaryArray:
    """A dictionary column with other texts in place of its own, equal ones once; null ones are null."""
    distinct = names.dictionary_encode()
    if not names.null_count and len(distinct.dictionary) == len(names):
        return pa.DictionaryArray.from_arrays(column.indices.cast(pa.int32()), names)
    codes = np.append(numbers(distinct.indices, -1), -1).astype(np.int32)[numbers(column.indices, -1)]
    return coded(codes, distinct.dictionary)


def _cluster_of(origin: str, clusters: Mapping[str, str]) -> str | None:
    """The cluster that a claim comes from."""
    return clusters.get(origin) if SEPARATOR in origin else origin


def split(place: str) -> tuple[str, int]:
    """`ip:port` taken apart."""
    ip, _, port = place.rpartition(":")
    return ip.strip("[]"), int(port)


@lru_cache(1 << 12)
def is_address(host: str) -> bool:
    """The host is an IP address, not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _plain(host: str) -> str:
    """A host as `identity.address` writes addresses."""
    try:
        found = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return host.lower()
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)
