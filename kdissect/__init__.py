"""kdissect turns packet captures of Apache Kafka traffic into tables."""

__version__ = "0.1.0"
