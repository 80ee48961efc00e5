"""Tables that are made topic by topic and partition by partition, whichever brokers their rows come from."""
