"""Pieces of tables and of segments as binary cells of rows, between Spark's stages."""
