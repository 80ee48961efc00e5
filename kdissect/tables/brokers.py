"""Which broker is behind an address: node ids from every message that tells.

Claims are (node id, host, port) triples out of cluster metadata, coordinator answers, node endpoints, registrations and
the like, plus connections whose client says itself which node it talks to (ApiVersions v5). They are collected over the
whole capture and used at the end, in this order:

1. The client of a connection to that `ip:port` said the node id.
2. A claim whose host is that ip, with that port.
3. A claim whose host is a name (`localhost`, `broker-1.example`): names cannot be resolved from a capture, so the
   port decides, if all claims for that port (names and addresses alike) agree on one node id and only one broker
   address of the capture uses the port.

Where the claims of a step disagree about the node id, or no step applies, the broker stays `ip:port`. Capture is
part of everything: two captures may show two clusters.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from kdissect.arrays.arrow import distinct
from kdissect.arrays.dictionaries import coded
from kdissect.tables.declaration.model import CODE, TEXT
from kdissect.tables.identity import SEPARATOR, endpoint
from kdissect.tables.nest import Level, numbers
from kdissect.tables.table_block import Block

SOURCES: tuple[tuple[int, int, str, str, str, str], ...] = (
    # API key, side, path of the list ("" none), then node id, host and port below it ("^": of the level above)
    (3, 1, "brokers", "node_id", "host", "port"),  # Metadata
    (10, 1, "", "node_id", "host", "port"),  # FindCoordinator v0-3
    (10, 1, "coordinators", "node_id", "host", "port"),  # FindCoordinator v4+
    (60, 1, "brokers", "broker_id", "host", "port"),  # DescribeCluster
    (0, 1, "node_endpoints", "node_id", "host", "port"),  # Produce
    (1, 1, "node_endpoints", "node_id", "host", "port"),  # Fetch
    (78, 1, "node_endpoints", "node_id", "host", "port"),  # ShareFetch
    (79, 1, "node_endpoints", "node_id", "host", "port"),  # ShareAcknowledge
    (52, 1, "node_endpoints", "node_id", "host", "port"),  # Vote
    (53, 1, "node_endpoints", "node_id", "host", "port"),  # BeginQuorumEpoch
    (54, 1, "node_endpoints", "node_id", "host", "port"),  # EndQuorumEpoch
    (59, 1, "node_endpoints", "node_id", "host", "port"),  # FetchSnapshot
    (4, 0, "live_leaders", "broker_id", "host_name", "port"),  # LeaderAndIsr
    (6, 0, "live_brokers", "id", "v0_host", "v0_port"),  # UpdateMetadata v0
    (6, 0, "live_brokers/endpoints", "^id", "host", "port"),  # UpdateMetadata v1+
    (55, 1, "nodes/listeners", "^node_id", "host", "port"),  # DescribeQuorum
    (62, 0, "listeners", "^broker_id", "host", "port"),  # BrokerRegistration
    (70, 0, "listeners", "^controller_id", "host", "port"),  # ControllerRegistration
    (80, 0, "listeners", "^voter_id", "host", "port"),  # AddRaftVoter
    (82, 0, "listeners", "^voter_id", "host", "port"),  # UpdateRaftVoter
    (82, 1, "", "current_leader.leader_id", "current_leader.host", "current_leader.port"),  # UpdateRaftVoter
)
"""Every place where a message names a node with its address."""

API_VERSIONS = 18
CODED = pa.dictionary(pa.int32(), TEXT)


def wanted() -> dict[tuple[int, int], set[str]]:
    """The message paths that claims are read from."""
    paths: dict[tuple[int, int], set[str]] = {(API_VERSIONS, 0): {"node_id"}}
    for key, side, levels, *names in SOURCES:
        steps = levels.split("/") if levels else []
        for name in names:
            base = steps[:-1] if name.startswith("^") else steps
            paths.setdefault((key, side), set()).add(".".join([*base, name.removeprefix("^")]))
    return paths


@dataclass(slots=True, eq=False, repr=False)
class Brokers:
    """Claims of a run, by capture name."""

    claims: dict[tuple[str, str, int], set[int]] = field(default_factory=dict)
    """(capture, host, port) -> node ids."""
    told: dict[str, set[int]] = field(default_factory=dict)
    """Unresolved broker (`capture<TAB>ip:port`) -> node ids that its clients said."""
    addresses: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    """(capture, port) -> addresses of brokers that use it."""
    given: dict[str, str] | None = None
    """Unresolved broker -> the name that `resolve` gave last; None: nobody asks."""

    @property
    def kept(self) -> bool:
        """Every name that was given is what would be given now."""
        names = self.names()
        return all(names.get(text, name) == name for text, name in (self.given or {}).items())

    def feed(self, block: Block) -> None:
        """Collect the claims of a block's messages, and the brokers that its exchanges go to."""
        captures = block.connections.captures
        for key, side, levels, node, host, port in SOURCES:
            if (key, side) not in block.done.messages:
                continue
            rows = block.connections.capture[block.done.conn[block.bodies(key, side)]]
            for capture, claim in self._read(block.nest(key, side), levels, node, host, port, rows):
                self.claim(captures[capture], *claim)
        self._listen(block)

    def claim(self, capture: str, node: int, host: str, port: int) -> None:
        """One message says: this node is at host and port."""
        self.claims.setdefault((capture, _plain(host), port), set()).add(node)

    def _read(
        self, root: Level, levels: str, node: str, host: str, port: str, captures: np.ndarray
    ) -> Iterable[tuple[int, tuple[int, str, int]]]:
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
        columns = np.stack([captures[level.body], nodes, numbers(hosts.indices), ports], axis=1)[good].astype(np.int64)
        for capture, number, text, at in distinct(columns).tolist():
            if texts[text]:
                yield capture, (number, texts[text], at)

    def _listen(self, block: Block) -> None:
        """Brokers in use, and node ids which clients say themselves."""
        directory = block.directory
        codes = directory.broker_codes(block.done.conn)
        present = np.zeros(len(directory.brokers.texts), np.bool_)
        present[codes] = True
        for code in np.flatnonzero(present):
            self.serves(directory.brokers.texts[code])
        bodies = block.bodies(API_VERSIONS, 0)
        if len(bodies):
            nodes = block.nest(API_VERSIONS, 0).ints("node_id")
            pairs = np.stack([codes[bodies], nodes], axis=1)[nodes >= 0]
            for code, node in distinct(pairs).tolist():
                self.told.setdefault(directory.brokers.texts[code], set()).add(node)

    def serves(self, unresolved: str) -> None:
        """A broker (`capture<TAB>ip:port`) that connections go to."""
        capture, place = unresolved.split(SEPARATOR)
        ip, port = split(place)
        self.addresses.setdefault((capture, port), set()).add(ip)

    def clear(self) -> None:
        """Forget everything."""
        self.claims.clear()
        self.told.clear()
        self.addresses.clear()

    def merge(self, other: Brokers) -> None:
        """Add what another part of the same work has collected."""
        for claim, nodes in other.claims.items():
            self.claims.setdefault(claim, set()).update(nodes)
        for broker, nodes in other.told.items():
            self.told.setdefault(broker, set()).update(nodes)
        for place, ips in other.addresses.items():
            self.addresses.setdefault(place, set()).update(ips)

    def names(self) -> Mapping[str, str]:
        """Unresolved broker -> node id as text, or `ip:port`: what is known now."""
        by_port: dict[tuple[str, int], set[int]] = {}
        named: set[tuple[str, int]] = set()
        for (capture, host, port), nodes in self.claims.items():
            by_port.setdefault((capture, port), set()).update(nodes)
            if not is_address(host):
                named.add((capture, port))
        out: dict[str, str] = {}
        for (capture, port), ips in self.addresses.items():
            for ip in ips:
                unresolved = f"{capture}{SEPARATOR}{endpoint(ip, port)}"
                steps = [self.told.get(unresolved), self.claims.get((capture, ip, port))]
                if (capture, port) in named and len(ips) == 1:
                    steps.append(by_port[capture, port])
                nodes = next((step for step in steps if step), set())
                out[unresolved] = str(next(iter(nodes))) if len(nodes) == 1 else endpoint(ip, port)
        return out

    def resolve(self, column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """A `broker` column as builders leave it, with node ids where known now, as a dictionary column."""
        if isinstance(column, pa.ChunkedArray):
            return pa.chunked_array([self.resolve(chunk) for chunk in column.chunks], CODED)
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        names = self.names()
        found = {text: names.get(text, text.rpartition(SEPARATOR)[2]) for text in column.dictionary.to_pylist() if text}
        if self.given is not None:
            self.given.update((text, name) for text, name in found.items() if SEPARATOR in text)
        names_of = [text and found[text] for text in column.dictionary.to_pylist()]
        texts = list(dict.fromkeys(names_of))
        if len(texts) == len(names_of):
            return pa.DictionaryArray.from_arrays(column.indices.cast(pa.int32()), pa.array(texts, TEXT))
        place = {text: i for i, text in enumerate(texts)}  # several places of one broker
        codes = np.array([place[name] for name in names_of], np.int32)[numbers(column.indices, 0)]
        return coded(codes, pa.array(texts, TEXT), np.asarray(column.is_null()))


def split(place: str) -> tuple[str, int]:
    """`ip:port` taken apart."""
    ip, _, port = place.rpartition(":")
    return ip.strip("[]"), int(port)


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
