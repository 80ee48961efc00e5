"""From producer to consumer: the way of record batches, and transactions."""
