"""Writes tables of some captures in Delta or Iceberg with the PySpark on the path, or, where no capture is named, says
which rows are there; run by test_lake_tables.py.

    python lake_writer.py FORMAT PACKAGES OUTPUT [CAPTURE...]
"""

from __future__ import annotations

import sys
import warnings

EXTENSIONS = {
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}


def main(form: str, packages: str, output: str, *captures: str) -> None:
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    from pyspark.sql import SparkSession

    from kdissect.spark.dataset import prepare
    from kdissect.spark.writing.saving import write

    built = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    built = built.config("spark.jars.packages", packages).config("spark.sql.extensions", EXTENSIONS[form])
    built = built.config("spark.sql.session.timeZone", "UTC").config("spark.sql.shuffle.partitions", "2")
    if form == "delta":
        built = built.config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        built = built.config("spark.databricks.delta.snapshotPartitions", "2")
    session = built.getOrCreate()
    if not captures:
        for row in session.read.format(form).load(f"{output}/exchanges").drop("at", "date").collect():
            print(row, flush=True)
        return
    job = prepare(list(captures), ["exchanges", "groups"]).on(session, 2, placed=True)
    print("begun", flush=True)
    write(job, output, form=form, by={"exchanges": ["date"]})


if __name__ == "__main__":
    main(*sys.argv[1:])
