"""Tables of transitions: complete, and with no way back from what is final."""

from __future__ import annotations

import pytest

from kdissect.tcp.layout import LOGINS, MODES, Login, Mode, Sasl, Sight


@pytest.mark.parametrize(("table", "states", "moves"), [(LOGINS, Sasl, Login), (MODES, Mode, Sight)])
def test_each_state_has_a_next_one_for_each_move(table: object, states: type[Sasl | Mode], moves: type) -> None:
    assert table.shape == (len(states), len(moves))  # type: ignore[attr-defined]
    assert set(table.ravel().tolist()) == {int(state) for state in states}  # type: ignore[attr-defined]


def test_what_is_not_kafka_stays_so() -> None:
    assert set(MODES[Mode.IGNORED].tolist()) == {Mode.IGNORED}


def test_tokens_are_bare_only_behind_a_handshake() -> None:
    ways = [(state, move) for state in Sasl for move in Login if LOGINS[state, move] == Sasl.BARE]
    assert ways == [(Sasl.NONE, Login.HANDSHAKE), (Sasl.BARE, Login.HANDSHAKE)]
    assert LOGINS[Sasl.BARE, Login.REQUEST] == Sasl.NONE
