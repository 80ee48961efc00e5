"""Benchmarks: large captures made on the spot, measured beside tshark. Nothing here asserts on a clock."""
