"""The state of `Clients`, as one run over a capture leaves it to the next."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kdissect.arrays.growing import read
from kdissect.tables.clients import FIRSTS, Clients, Firsts
from kdissect.tables.identity import Directory
from kdissect.tables.nest import Int64s


class CarriedFirsts(NamedTuple):
    """`Firsts` of some connections."""

    texts: list[str]
    ordinal: npt.NDArray[np.int32]
    code: npt.NDArray[np.int32]


class CarriedClients(NamedTuple):
    """`Clients` of some connections."""

    firsts: list[CarriedFirsts]
    """In the order of FIRSTS."""
    group_ids: list[str]
    own: npt.NDArray[np.int32]
    shared: dict[tuple[str, str], set[str]]
    """(client address, client id) -> groups named from there."""


def carry_clients(clients: Clients, rows: Int64s, directory: Directory) -> CarriedClients:
    """The state of these connections, as the first ones of another run over the same capture."""
    firsts: list[Firsts] = [getattr(clients, name) for name in FIRSTS]
    shared = {(directory.ips.texts[address], name): groups for (_, address, name), groups in clients.shared.items()}
    return CarriedClients(
        [CarriedFirsts(list(one.texts.texts), read(one.ordinal, rows), read(one.code, rows)) for one in firsts],
        list(clients.group_ids.texts),
        read(clients.own, rows),
        shared,
    )


def go_on_with_clients(clients: Clients, before: CarriedClients, directory: Directory) -> None:
    """Clients of whom nothing is known yet begin with what another run over the same capture has carried."""
    for name, carried in zip(FIRSTS, before.firsts, strict=True):
        firsts: Firsts = getattr(clients, name)
        for text in carried.texts:
            firsts.texts.code(text)
        firsts.ordinal, firsts.code = carried.ordinal, carried.code
    for text in before.group_ids:
        clients.group_ids.code(text)
    clients.own = before.own
    for (address, name), groups in before.shared.items():
        clients.shared[0, directory.ips.code(address), name] = groups
