"""Exchanges as OpenTelemetry spans and metrics, sent by OTLP or written to a file. Needs the extra `otlp`.

import kdissect.otlp
kdissect.otlp.send(kdissect.open("broker.pcap"), "http://localhost:4318")
"""

from __future__ import annotations

from kdissect.otlp.receivers import FileReceiver, HttpReceiver, Receiver, ready, receiver_port
from kdissect.otlp.sending import Sent, send, write

__all__ = ["FileReceiver", "HttpReceiver", "Receiver", "Sent", "ready", "receiver_port", "send", "write"]
