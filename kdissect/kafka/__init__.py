"""From TCP streams to Kafka exchanges and decoded messages."""
