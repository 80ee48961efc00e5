"""Captures damaged in every way and in several at once: what was left whole is read whole, nothing is invented.

`pytest -s tests/oracle/test_mixed_damage.py` prints the figures; `-m exhaustive` draws many more.
"""

from __future__ import annotations

import io
from collections import Counter

import pytest

import kdissect
from tests.oracle.damage import outcome, spans
from tests.oracle.mixtures import KINDS, mixture
from tests.oracle.test_damage import RECORDED

pytestmark = pytest.mark.oracle

HEAD = """
| damage | captures | untouched exchanges | recovered | share | touched | invented |
|---|---|---|---|---|---|---|"""
FIGURES = ("captures", "untouched", "recovered", "touched", "invented")


def damage(seeds: range, names: list[str]) -> None:
    """Draw, read, compare; print a line for each mixture of kinds."""
    figures: dict[tuple[str, ...], Counter[str]] = {}
    wrong: list[str] = []
    for name in names:
        for seed in seeds:
            made = mixture(seed, name)
            rows = kdissect.open(io.BytesIO(made.data)).table("exchanges").to_pylist()
            found, untruths = outcome(rows, made.gone, name, made.cut | sent_again(made.kinds, name))
            figures.setdefault(tuple(sorted(made.kinds)), Counter()).update(
                captures=1, untouched=found.whole, recovered=found.same, touched=found.touched, invented=found.invented
            )
            wrong += [f"{name}, seed {seed} ({' and '.join(made.kinds)}): {text}" for text in untruths]
    print(HEAD)
    every: Counter[str] = Counter()
    for kinds, line in sorted(figures.items(), key=lambda item: (len(item[0]), item[0])):
        every.update(line)
        print(_line(" + ".join(kinds), line))
    print(_line("all", every))
    for kind in KINDS:
        drawn = sum(line["captures"] for kinds, line in figures.items() if kind in kinds)
        mixed = sum(line["captures"] for kinds, line in figures.items() if kind in kinds and len(kinds) > 1)
        assert drawn > mixed > 0, f"{kind} was not drawn alone and with others"
    assert not wrong, f"{len(wrong)}: " + "\n".join(wrong[:8])
    assert every["recovered"] == every["untouched"] > 0
    assert every["touched"] > 0
    assert every["invented"] == 0


def sent_again(kinds: tuple[str, ...], name: str) -> frozenset[int]:
    """Where records are reordered, a retransmission may come before what it repeats: those frames have other times."""
    if "reordering" not in kinds:
        return frozenset()
    return frozenset().union(*(s.request | s.response for s in spans(name).values() if s.again))


def _line(title: str, line: Counter[str]) -> str:
    share = f"{line['recovered'] / line['untouched']:.1%}" if line["untouched"] else "-"
    shown = [str(line[name]) for name in FIGURES]
    return f"| {title} | {' | '.join(shown[:3])} | {share} | {' | '.join(shown[3:])} |"


def test_damage_of_every_kind() -> None:
    damage(range(24), ["base", "zoo_librdkafka"])


@pytest.mark.exhaustive
def test_much_damage_of_every_kind() -> None:
    damage(range(300), RECORDED)
