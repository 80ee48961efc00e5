"""Spark's types for Arrow's: schemas of DataFrames out of the one declaration of the tables."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def spark_schema(schema: pa.Schema, full: Collection[str] = ()) -> StructType:
    """A Spark schema: same names and types, each column's meaning as its comment. `full`: columns without nulls."""
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructField, StructType

    plain = from_arrow_schema(schema)
    fields = []
    for made, field in zip(plain.fields, schema, strict=True):
        doc = (field.metadata or {}).get(b"doc", b"").decode()
        fields.append(StructField(made.name, made.dataType, made.name not in full, {"comment": doc} if doc else None))
    return StructType(fields)
