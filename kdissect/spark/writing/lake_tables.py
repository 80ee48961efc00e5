"""Tables in Delta or Iceberg: each is changed by one commit of its own, so readers have the old rows or the new.

`exchanges` and `fetches` are merged by `exchange_id`: rows that are the same stay where they are, so that a run over a
little more commits a little more. Other tables are replaced. Columns that a newer version adds are added; none goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kdissect.spark.writing.destination import target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LAKES = ("delta", "iceberg")
MERGED = {"exchanges": "exchange_id", "fetches": "exchange_id"}
"""Tables with a column that tells each row from all others."""
CATALOG = "kdissect_output"
"""Iceberg's tables below the output, by name."""


def iceberg_catalog(session: SparkSession, output: str) -> None:
    """Let the session know the tables of Iceberg below a folder as those of CATALOG."""
    session.conf.set(f"spark.sql.catalog.{CATALOG}", "org.apache.iceberg.spark.SparkCatalog")
    session.conf.set(f"spark.sql.catalog.{CATALOG}.type", "hadoop")
    session.conf.set(f"spark.sql.catalog.{CATALOG}.warehouse", output)


class LakeTables:
    """Tables below a folder, in one format."""

    def __init__(self, session: SparkSession, form: str, output: str) -> None:
        self._session, self._form, self._output = session, form, output
        if form == "iceberg":
            iceberg_catalog(session, output)

    def save(self, name: str, frame: DataFrame, by: Sequence[str]) -> int:
        """Make these the rows of a table; how many it has."""
        if name in MERGED and self._exists(name):
            self._merge(name, frame, MERGED[name])
        elif self._form == "delta":
            made = frame.write.format("delta").mode("overwrite").option("mergeSchema", "true")
            made.partitionBy(*by).save(self._place(name))
        else:
            made_to = frame.writeTo(self._name(name)).using("iceberg")
            columns = [frame[column] for column in by]
            (made_to.partitionedBy(*columns) if columns else made_to).createOrReplace()
        return self._session.table(self._name(name)).count()

    def _merge(self, name: str, frame: DataFrame, key: str) -> None:
        view = f"kdissect_{name}"
        frame.createOrReplaceTempView(view)
        known = self._session.table(self._name(name)).columns
        same = " and ".join(f"old.`{column}` <=> new.`{column}`" for column in frame.columns if column in known)
        if set(known) < set(frame.columns):
            same = "false"  # new columns: every row gets them
        self._session.sql(
            f"merge with schema evolution into {self._name(name)} old using {view} new on old.{key} = new.{key} "
            f"when matched and not ({same}) then update set * when not matched then insert * "
            "when not matched by source then delete"
        )
        self._session.catalog.dropTempView(view)

    def _place(self, name: str) -> str:
        return target(self._output, name)

    def _name(self, name: str) -> str:
        return f"delta.`{self._place(name)}`" if self._form == "delta" else f"{CATALOG}.`{name}`"

    def _exists(self, name: str) -> bool:
        from pyspark.errors import AnalysisException

        try:
            return bool(self._session.table(self._name(name)).columns)
        except AnalysisException:
            return False
