"""Names of addresses: from files that the user gives, and from name resolution blocks of pcapng captures.

A file is in the format of /etc/hosts (hosts(5)), or what `kubectl get pods,services,endpoints -o json` prints. Of an
address with several names the first one counts: files in the order given, then the captures' own. In Kubernetes an
address is called as its DNS does (pod.service.namespace.svc, service.namespace.svc), a pod without a service
pod.namespace.pod. An address that several pods share is the node's, and is called after the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kdissect.arrays.arrow import numbers
from kdissect.arrays.dictionaries import no_values
from kdissect.arrays.from_numpy import arrow_array
from kdissect.capture.name_blocks import add_name, plain_address
from kdissect.problems import UsageError
from kdissect.tables.declaration.model import TEXT
from kdissect.tables.identity import SEPARATOR

MOST_BYTES = 256 << 20
"""Of a file of names: a list of all pods of a large cluster has some tens of MB."""
ENDED = ("Succeeded", "Failed")
"""Phases of pods that have given their address back (Kubernetes API, PodStatus)."""
CODED = pa.dictionary(pa.int32(), TEXT)

Names = dict[str, str]
"""Address, as `identity.address` writes it -> name."""


def read_names(paths: Sequence[str | Path]) -> Names:
    """The names in these files. Raises UsageError for a file that cannot be read or has another format."""
    names: Names = {}
    for path in paths:
        for address, name in _read_file(Path(path)):
            add_name(names, address, name)
    return names


def _read_file(path: Path) -> Iterator[tuple[str, str]]:
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    if len(data) > MOST_BYTES:
        raise UsageError(f"{path}: a file of names has at most {MOST_BYTES >> 20} MiB")
    text = data.decode(errors="replace")
    return _kubernetes(path, text) if text.lstrip().startswith("{") else _hosts(path, text)


def _hosts(path: Path, text: str) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        address = plain_address(words[0])
        if address is None or len(words) < 2:
            raise UsageError(f"{path}, line {number}: a line has an address and a name, as in /etc/hosts; or give what "
                             "kubectl get pods,services,endpoints -o json prints")  # fmt: skip
        yield address, words[1]


def _kubernetes(path: Path, text: str) -> Iterator[tuple[str, str]]:
    import json

    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError(f"{path}: begins like JSON and is none") from None
    items = whole.get("items") if whole.get("kind", "").endswith("List") else [whole]
    by_kind: dict[str, list[Any]] = {"Pod": [], "Service": [], "Endpoints": []}
    for item in items if isinstance(items, list) else ():
        kind = _part(item, "kind")
        if kind in by_kind:
            by_kind[kind].append(item)
    if not any(by_kind.values()):
        raise UsageError(f"{path}: has no pods, services or endpoints, as kubectl get pods,services,endpoints -o json "
                         "prints them")  # fmt: skip
    headless = {_key(one) for one in by_kind["Service"] if _part(one, "spec", "clusterIP") == "None"}
    services = _services_of_pods(by_kind["Endpoints"], headless)
    yield from _pods(by_kind["Pod"], services)
    for one in by_kind["Service"]:
        namespace, name = _key(one)
        for address in {_part(one, "spec", "clusterIP"): None, **dict.fromkeys(_list(one, "spec", "clusterIPs"))}:
            yield from _pair_address(address, f"{name}.{namespace}.svc")
    for one in by_kind["Endpoints"]:  # of pods that the list does not have
        namespace, name = _key(one)
        for address in _addresses(one):
            pod = _part(address, "targetRef", "name")
            yield from _pair_address(
                _part(address, "ip"), f"{pod}.{name}.{namespace}.svc" if pod else f"{name}.{namespace}.svc"
            )


def _services_of_pods(endpoints: Iterable[Any], headless: set[tuple[str, str]]) -> Mapping[tuple[str, str], str]:
    """(namespace, pod) -> the service that selects it: a headless one before others, then by name."""
    found: dict[tuple[str, str], str] = {}
    for one in sorted(endpoints, key=lambda item: (_key(item) not in headless, _key(item))):
        namespace, name = _key(one)
        for address in _addresses(one):
            pod = _part(address, "targetRef", "name")
            if isinstance(pod, str) and _part(address, "targetRef", "kind") == "Pod":
                found.setdefault((namespace, pod), name)
    return found


def _pods(pods: Iterable[Any], services: Mapping[tuple[str, str], str]) -> Iterator[tuple[str, str]]:
    for pod in pods:
        if _part(pod, "status", "phase") in ENDED:
            continue
        namespace, name = _key(pod)
        service = _part(pod, "spec", "subdomain") or services.get((namespace, name))
        called = f"{name}.{service}.{namespace}.svc" if service else f"{name}.{namespace}.pod"
        if _part(pod, "spec", "hostNetwork") is True:
            called = _text(_part(pod, "spec", "nodeName"))
        addresses = [_part(pod, "status", "podIP"), *(_part(one, "ip") for one in _list(pod, "status", "podIPs"))]
        for address in dict.fromkeys(one for one in addresses if isinstance(one, str)):
            yield from _pair_address(address, called)


def _pair_address(address: Any, name: str) -> Iterator[tuple[str, str]]:
    found = plain_address(address) if isinstance(address, str) else None
    if found is not None:
        yield found, name


def _part(item: Any, *keys: str) -> Any:
    """The value at a path of an object, None where it has no such path."""
    for key in keys:
        item = item.get(key) if isinstance(item, dict) else None
    return item


def _list(item: Any, *keys: str) -> list[Any]:
    found = _part(item, *keys)
    return found if isinstance(found, list) else []


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _key(item: Any) -> tuple[str, str]:
    return _text(_part(item, "metadata", "namespace")) or "default", _text(_part(item, "metadata", "name"))


def _addresses(endpoints: Any) -> Iterator[Any]:
    for subset in _list(endpoints, "subsets"):
        yield from _list(subset, "addresses")
        yield from _list(subset, "notReadyAddresses")


class HostNames:
    """The names of a run's addresses; some may come while it reads."""

    __slots__ = ("captured", "files", "given")

    def __init__(self, files: Mapping[str, str], captured: Sequence[Mapping[str, str]] = ()) -> None:
        """`files`: names that the user gave. `captured`: of each capture, those that it has told by now; they grow."""
        self.files = files
        self.captured = captured
        self.given: dict[str, str | None] | None = None
        """Address -> the name that `resolve` gave last; None: nobody asks."""

    def name(self, address: str) -> str | None:
        """The name of an address by now."""
        found = self.files.get(address)
        if found is None:
            found = next((names[address] for names in self.captured if address in names), None)
        return found

    @property
    def names_unchanged(self) -> bool:
        """True if every name that `resolve` gave is the one that it would give now."""
        return all(self.name(address) == name for address, name in (self.given or {}).items())

    def resolve(self, column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """A column of addresses as builders leave it (`<TAB>ip`) as their names, null where none is known, as a
        dictionary column. Names stay."""
        if isinstance(column, pa.ChunkedArray):
            return pa.chunked_array([self.resolve(chunk) for chunk in column.chunks], CODED)
        if not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        none_known = self.given is None and not self.files and not any(self.captured)
        if none_known and pc.all(pc.starts_with(column.dictionary, SEPARATOR), min_count=0).as_py():
            return no_values(len(column), CODED)
        names: list[str | None] = []
        for text in column.dictionary.to_pylist():
            name = text
            if text is not None and text.startswith(SEPARATOR):
                name = self.name(text[1:])
                if self.given is not None:
                    self.given[text[1:]] = name
            names.append(name)
        texts = list(dict.fromkeys(name for name in names if name is not None))
        place: dict[str | None, int] = {text: i for i, text in enumerate(texts)}
        codes = np.array([*(place.get(name, -1) for name in names), -1], np.int32)[numbers(column.indices, -1)]
        return pa.DictionaryArray.from_arrays(arrow_array(codes, pa.int32(), mask=codes < 0), pa.array(texts, TEXT))
