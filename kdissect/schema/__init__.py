"""The wire format as data: every message of every Kafka release, and what reads it. Knows nothing of packets."""
