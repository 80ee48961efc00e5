"""Makers against the declaration: whatever is forgotten is an error that names table, column and what is missing."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import MappingProxyType

import pyarrow as pa
import pytest

from kdissect.tables import makers
from kdissect.tables.declaration import TABLES
from kdissect.tables.declaration.fetching import FETCH
from kdissect.tables.declaration.model import TEXT, By, Column, DeclarationError, Gathering, Table, table
from kdissect.tables.declaration.readers import reader
from kdissect.tables.makers import complete, fills
from kdissect.tables.nest import pick
from kdissect.tables.projection import GATHERED, message_paths
from kdissect.tables.registered import BLOCK_MAKERS
from tests.conftest import ROOT

IMAGINED = Column("imagined", TEXT, "Id of the cluster that a follower expects.", reads=FETCH.request("cluster_id"))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Tables and makers that a test may change."""
    monkeypatch.setattr(makers, "TABLES", dict(TABLES))
    monkeypatch.setattr(makers, "BLOCK_MAKERS", dict(BLOCK_MAKERS))
    return monkeypatch


def declare(*columns: Column) -> None:
    tables: dict[str, Table] = makers.TABLES  # type: ignore[assignment]
    tables["fetches"] = replace(tables["fetches"], columns=(*tables["fetches"].columns, *columns))


def make(path: str) -> None:
    """`fetches` with a column `imagined` read from a field of the request."""
    fetches = BLOCK_MAKERS["fetches"]

    def more(block):
        columns, rows = fetches(block)
        asked = block.body_of(1, 0)[block.rows(1)]
        return {**columns, "imagined": lambda: pick(block.nest(1, 0).column(path, TEXT), asked)}, rows

    makers.BLOCK_MAKERS["fetches"] = more


def test_all_is_as_declared(world: pytest.MonkeyPatch) -> None:
    complete()
    declare(IMAGINED)
    make("cluster_id")
    complete()


def test_a_column_that_nobody_fills(world: pytest.MonkeyPatch) -> None:
    declare(IMAGINED)
    with pytest.raises(DeclarationError, match=r"'fetches', column 'imagined': it is declared .* nobody fills it"):
        complete()


def test_a_column_that_is_not_declared(world: pytest.MonkeyPatch) -> None:
    make("cluster_id")
    with pytest.raises(DeclarationError, match=r"table 'fetches', column 'imagined': .* it is not declared"):
        complete()


def test_a_field_that_is_not_in_reads(world: pytest.MonkeyPatch) -> None:
    declare(IMAGINED._replace(reads=frozenset()))
    make("cluster_id")
    with pytest.raises(DeclarationError, match="'imagined': its maker reads 'cluster_id' of the request of"):
        complete()


def test_a_field_that_is_not_read(world: pytest.MonkeyPatch) -> None:
    declare(IMAGINED._replace(reads=FETCH.request("cluster_id", "rack_id")))
    make("cluster_id")
    with pytest.raises(DeclarationError, match=r"`reads` names 'rack_id' .* its maker does not read it"):
        complete()


def test_columns_of_the_analysis(world: pytest.MonkeyPatch) -> None:
    filled = ("hold", "excess_ms", "agreed_ms", "throttled_ms")
    declare(IMAGINED._replace(by=By.FETCH_HOLDS, reads=frozenset()))
    with pytest.raises(DeclarationError, match=r"column 'imagined': .* the 'fetch holds' of 'fetches' makes no such"):
        fills(By.FETCH_HOLDS, lambda: {"fetches": filled})
    fills(By.FETCH_HOLDS, lambda: {"fetches": [*filled, "imagined", "_helper"]})
    with pytest.raises(DeclarationError, match=r"column 'reason': .* it is not declared"):
        fills(By.FETCH_HOLDS, lambda: {"fetches": [*filled, "imagined", "reason"]})
    with pytest.raises(DeclarationError, match="table 'wishes', which 'fetch holds' makes, is not declared"):
        fills(By.FETCH_HOLDS, lambda: {"wishes": ["hold"]})


def test_what_is_installed_is_not_looked_at_again(world: pytest.MonkeyPatch) -> None:
    world.setattr(makers, "HELD", False)
    fills(By.FETCH_HOLDS, lambda: {"wishes": ["hold"]})


def test_a_table_that_nobody_makes(world: pytest.MonkeyPatch) -> None:
    tables: dict[str, Table] = makers.TABLES  # type: ignore[assignment]
    tables["wishes"] = table("wishes", "Produce exchange", IMAGINED, made=By.BLOCK, key=())
    with pytest.raises(DeclarationError, match="table 'wishes': no row maker is registered"):
        complete()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"columns": (IMAGINED, IMAGINED)}, "column 'imagined': it is declared twice"),
        ({"columns": (IMAGINED._replace(doc="An id"),)}, "no sentence"),
        ({"columns": (IMAGINED,), "shown": ("cluster",)}, "no column 'cluster', which `shown` names"),
        ({"columns": (IMAGINED,), "key": ("at",)}, "no column 'at', which `key` names"),
    ],
)
def test_a_declaration_that_contradicts_itself(change: dict[str, object], said: str) -> None:
    with pytest.raises(DeclarationError, match=said):
        replace(Table("t", "row", (IMAGINED,), By.BLOCK, ()), **change)  # type: ignore[arg-type]


def test_readers_name_columns_that_are_there() -> None:
    with pytest.raises(DeclarationError, match="somebody reads column 'latency' of 'exchanges', which is not declared"):
        reader("somebody", exchanges="exchange_id latency")
    with pytest.raises(DeclarationError, match="reads table 'fetchs'"):
        reader("somebody", fetchs="*")


def test_what_columns_need() -> None:
    needed = message_paths(["fetches"], {"fetches": ["rack_id", "broker"]})
    assert needed[1, 0] == {"rack_id"} | GATHERED[Gathering.BROKERS].get((1, 0), set())
    assert needed[3, 1] == GATHERED[Gathering.BROKERS][3, 1]
    assert (3, 1) not in message_paths(["fetches"], {"fetches": ["rack_id"]})


def test_every_column_is_made_by_somebody_known() -> None:
    assert isinstance(TABLES, MappingProxyType)
    for declared in TABLES.values():
        makers_of_it = {column.by or declared.made for column in declared.columns}
        assert makers_of_it <= set(By)
        assert declared.late >= declared.analysed
        assert declared.schema.equals(pa.schema(declared.schema))


def test_nothing_is_compiled_for_it() -> None:
    """Makers are tried when they are imported, without any kernel."""
    modules = (
        "tables.registered",
        "analysis.sessions.tracker",
        "analysis.sessions.shares",
        "analysis.holds.exchange_holds",
    )
    code = "; ".join([*(f"import kdissect.{name}" for name in modules), "import sys; sys.exit('numba' in sys.modules)"])
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60).returncode == 0
