"""Declarations: findings, the quality of the capture, and problems."""

from __future__ import annotations

from kdissect.tables.declaration.model import CAPTURE, CONNECTION_ID, COUNT, EXCHANGE_ID, REAL, TEXT, TIME, table

FINDINGS = table(
    "findings",
    "finding",
    ("id", TEXT, "Kind of finding, a stable word."),
    ("severity", TEXT, "high, medium, low, info."),
    ("text", TEXT, "The finding in a sentence."),
    ("table", TEXT, "Table that shows the evidence."),
    ("filter", TEXT, "Expression for `--where` which selects it."),
    ("count", COUNT, "Rows of evidence."),
    ("first_exchange_id", TEXT, "First exchange of the evidence; null where it is not about exchanges."),
)

CAPTURE_QUALITY = table(
    "capture_quality",
    "capture file x measure",
    CAPTURE,
    ("file", TEXT, "File of the capture; null for the capture as a whole."),
    ("measure", TEXT, "What is measured: packets, packets_dropped, missing_bytes, ..."),
    ("value", REAL, "The figure."),
    ("text", TEXT, "What it means, in words; or the value where it is no number."),
)

PROBLEMS = table(
    "problems",
    "anything not read or not right",
    CAPTURE,
    CONNECTION_ID,
    EXCHANGE_ID,
    ("at", TIME, "When."),
    ("file", TEXT, "File that `frame` counts in."),
    ("frame", COUNT, "Number of the packet, as Wireshark counts."),
    ("kind", TEXT, "Kind of problem, such as missing_bytes, resynchronised, body_misfit, unknown_version, tls."),
    ("where", TEXT, "Place: direction, field path, schema line."),
    ("detail", TEXT, "What is wrong, in words."),
    ("bytes", COUNT, "Bytes affected; null where that does not apply."),
)
