"""The data source `kdissect`: batch and streaming."""
