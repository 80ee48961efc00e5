"""TLS records -> plaintext, where keys are given: key logs, records, handshakes, key schedules.

Knows nothing of packets: `kafka.streams.encryption` brings each connection's bytes here and takes plaintext back.
"""
