"""The catalogue of findings holds all their texts, and finders build none."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from kdissect.analysis.findings.catalogue import KINDS, Kind, choose
from kdissect.analysis.findings.catalogue.kind import Texts
from kdissect.analysis.findings.template import FIELD, FORMS, fields, fill
from tests.conftest import ROOT

RULES = sorted((ROOT / "kdissect" / "analysis" / "findings" / "rules").rglob("*_findings.py"))
CAUSES = {"client", "network", "broker", "follower", "settings", "security", "capture", "unknown"}
CONDITION = re.compile(r"[<>=]|\bin \(|\bis (not )?null\b|\bnot \w+$|^ and |\band (not|is_)")
WORDS = 3
"""So many words and more are a phrase."""
OF_FINDINGS = {"client", "broker", "group", "topic", "partition", "place", "transaction", "first", "last", "lasted"}
"""Values that every text may name."""


def every(texts: Texts) -> list[str]:
    return [texts] if isinstance(texts, str) else list(texts.values())


def texts_of(kind: Kind) -> list[str]:
    return [*every(kind.headline), *every(kind.sentence), *kind.parts.values()]


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_kind_is_complete(name: str) -> None:
    kind = KINDS[name]
    assert {kind.cause, *kind.other_causes} <= CAUSES
    for template in texts_of(kind):
        for _, form in FIELD.findall(template):
            assert form in FORMS or form[:1] in ("#", "?") or form.removeprefix("list ") in kind.parts, (template, form)
    for headline in every(kind.headline):
        assert not headline.endswith(".")
        assert len(FIELD.sub("name", headline)) <= 120
    for sentence in every(kind.sentence):
        assert sentence.rstrip("]")[-1] in '."', sentence
    for advice in every(kind.advice or "."):
        assert advice.endswith(".")
    assert all((kind.rule.endswith("."), kind.needs, kind.example))


@pytest.mark.parametrize("name", sorted(name for name, kind in KINDS.items() if not isinstance(kind.sentence, str)))
def test_cases_agree(name: str) -> None:
    """A headline, or an advice, with cases has those of the sentence."""
    kind = KINDS[name]
    assert not isinstance(kind.sentence, str)
    for texts in (kind.headline, kind.advice):
        assert isinstance(texts, str | None) or set(texts) == set(kind.sentence)


def test_a_text_without_cases_is_the_text_of_all() -> None:
    assert choose("x", "any") == choose("x", None) == "x"
    with pytest.raises(KeyError):
        choose({"a": "x"}, None)


@pytest.mark.parametrize("path", RULES, ids=lambda path: str(path.stem))
def test_finders_build_no_sentences(path: Path) -> None:
    """Texts of a finder are conditions of filters, names of columns and nothing else."""
    tree = ast.parse(path.read_text())
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    said = [
        node.value for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
        and len(node.value.split()) >= WORDS and not CONDITION.search(node.value)
    ]  # fmt: skip
    assert said == []


def test_every_value_of_a_headline_is_one_of_the_sentence_or_of_all_findings() -> None:
    for name, kind in KINDS.items():
        named = set().union(*map(fields, texts_of(kind)))
        for headline in every(kind.headline):
            assert fields(headline) <= named | OF_FINDINGS | {"count"}, name


def test_headlines_name_subject_and_length() -> None:
    assert fill(choose(KINDS["broker_stalled"].headline, "once"), {"broker": "3", "lasted": 3000.0}, {}) == (
        "broker 3 answered nothing for 3.0 s"
    )
