"""Rules for findings about the way of records from producer to consumer."""
