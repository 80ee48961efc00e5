"""Tables in Delta or Iceberg: each is replaced by one commit of its own, so readers have the old rows or the new."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kdissect.spark.writing.destination import target

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LAKES = ("delta", "iceberg")
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
        if self._form == "delta":
            made = frame.write.format("delta").mode("overwrite").option("overwriteSchema", "true")
            made.partitionBy(*by).save(self._place(name))
        else:
            made_to = frame.writeTo(self._name(name)).using("iceberg")
            columns = [frame[column] for column in by]
            (made_to.partitionedBy(*columns) if columns else made_to).createOrReplace()
        return self._session.table(self._name(name)).count()

    def _place(self, name: str) -> str:
        return target(self._output, name)

    def _name(self, name: str) -> str:
        return f"delta.`{self._place(name)}`" if self._form == "delta" else f"{CATALOG}.`{name}`"
