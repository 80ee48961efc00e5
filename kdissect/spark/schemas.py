"""Spark's types for Arrow's: schemas of DataFrames out of the one declaration of the tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from kdissect.tables.declaration import SCHEMAS, TABLES

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import StructType


def arrow_schema(name: str, columns: Iterable[str]) -> pa.Schema:
    """The schema of these columns of a table; those that are declared to be never null are not nullable."""
    filled = TABLES[name].never_null
    return pa.schema([SCHEMAS[name].field(column).with_nullable(column not in filled) for column in columns])


def spark_schema(schema: pa.Schema, full: Collection[str] = ()) -> StructType:
    """A Spark schema: same names and types, each column's meaning as its comment. `full`: more columns without null."""
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructField, StructType

    plain = from_arrow_schema(schema)
    fields = []
    for made, field in zip(plain.fields, schema, strict=True):
        doc = (field.metadata or {}).get(b"doc", b"").decode()
        nullable = made.nullable and made.name not in full
        fields.append(StructField(made.name, made.dataType, nullable, {"comment": doc} if doc else None))
    return StructType(fields)


def without(schema: StructType, columns: Collection[str]) -> StructType:
    """The schema without these columns."""
    from pyspark.sql.types import StructType

    return StructType([field for field in schema if field.name not in columns])


def with_single(schema: StructType, single: Mapping[str, Any]) -> list[Column]:
    """The columns of a schema, `single` ones of them by their one value."""
    from pyspark.sql.functions import col, lit

    columns = []
    for field in schema:
        if field.name in single:
            value = lit(single[field.name]).cast(field.dataType)
            columns.append(value.alias(field.name, metadata=field.metadata))
        else:
            columns.append(col(field.name))
    return columns
