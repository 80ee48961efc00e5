"""Analysis of tables: fetch and share sessions, why a broker answered when it did, latency, findings, comparison.

Everything here takes Arrow tables of the contract and returns Arrow tables, whether they come from a capture just
read or from Parquet files written last week. Nothing here opens a capture.
"""
