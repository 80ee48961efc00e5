"""Names for what is not Kafka, by the first bytes of a connection.

Only to tell the reader what was left alone; nothing depends on it.
"""

from __future__ import annotations

NAMES = (
    "kafka", "tls", "http", "http2", "ssh", "redis", "postgresql", "mysql", "amqp", "mqtt", "zookeeper", "smtp", "ftp",
    "ldap", "memcached", "mongodb", "cassandra", "dns", "smb", "bgp", "rdp", "nats", "unknown",
)  # fmt: skip
"""`connections.protocol`."""
KAFKA = 0
TLS = 1
UNKNOWN = len(NAMES) - 1

_HTTP = (b"GET ", b"POST", b"PUT ", b"HEAD", b"DELE", b"OPTI", b"PATC", b"CONN", b"TRAC", b"HTTP")


def name_of(a_begin: int, a_more: int, b_begin: int, b_more: int) -> int:
    """Index into NAMES from the first 16 bytes of both directions (as signed big-endian words), -1 when none came."""
    sides = [
        (first & (1 << 64) - 1).to_bytes(8, "big") + (more & (1 << 64) - 1).to_bytes(8, "big")
        for first, more in ((a_begin, a_more), (b_begin, b_more))
        if first or more
    ]
    if not sides:
        return -1
    for start in sides:
        found = _recognise(start)
        if found is not None:
            return NAMES.index(found)
    return UNKNOWN


def _recognise(start: bytes) -> str | None:
    """The protocol that begins like this (RFC 8446, 9112, 9113, 4253, 5321; the others' own documents)."""
    if start[0] in (0x14, 0x15, 0x16, 0x17) and start[1] == 3 and start[2] <= 4:
        return "tls"
    if start.startswith(b"PRI * HTTP/2.0"):
        return "http2"
    if start.startswith(_HTTP):
        return "http"
    if start.startswith(b"SSH-"):
        return "ssh"
    if start.startswith(b"AMQP"):
        return "amqp"
    if start.startswith((b"*1\r\n", b"*2\r\n", b"*3\r\n", b"*4\r\n", b"*5\r\n", b"+PONG", b"PING\r\n")):
        return "redis"
    if start[4:8] in (b"\x00\x03\x00\x00", b"\x04\xd2\x16\x2f"):
        return "postgresql"
    if start[3] == 0 and start[4] == 10 and start[5:6].isdigit():
        return "mysql"
    if start[0] == 0x10 and b"MQ" in start[:9]:
        return "mqtt"
    if start[:8] == b"\x00\x00\x00\x2d\x00\x00\x00\x00" or start[:4] in (b"ruok", b"stat", b"mntr", b"srvr"):
        return "zookeeper"
    if start.startswith((b"EHLO", b"HELO")) or (start.startswith(b"220 ") and b"SMTP" in start):
        return "smtp"
    if start.startswith((b"USER ", b"220 ", b"220-")):
        return "ftp"
    if start[0] == 0x30 and start[2:4] == b"\x02\x01":
        return "ldap"
    if start.startswith((b"get ", b"set ", b"stats", b"version\r\n")) or (start[0] in (0x80, 0x81) and start[3] == 0):
        return "memcached"
    if start[12:16] in (b"\xdd\x07\x00\x00", b"\xd4\x07\x00\x00", b"\x01\x00\x00\x00") and start[2:4] == b"\x00\x00":
        return "mongodb"
    if start[0] in (3, 4, 5) and start[1] <= 31 and start[4] in (1, 5, 7):
        return "cassandra"
    if start[4:8] in (b"\xffSMB", b"\xfeSMB"):
        return "smb"
    if start == b"\xff" * 16:
        return "bgp"
    if start[:2] == b"\x03\x00" and start[5] == 0xE0:
        return "rdp"
    if start.startswith((b"INFO {", b"CONNECT {")):
        return "nats"
    return None
