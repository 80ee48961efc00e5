"""Tables whose rows are dealt out by what they are about: partitions, producers, brokers and who spent time."""
