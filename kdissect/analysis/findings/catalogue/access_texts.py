"""Findings about clients that do not get in: refused connections, TLS, logins, permissions."""

from __future__ import annotations

from kdissect.analysis.findings.catalogue.kind import SENT_AGAIN, Kind

KINDS = {
    "connections_refused": Kind(
        cause="broker",
        other_causes=("unknown", "settings"),
        rule=(
            "A SYN was answered by a reset, on a port where Kafka was seen or that metadata names, or where the "
            "capture holds no Kafka at all. Other ports count where a client of the same address speaks Kafka "
            "elsewhere. Then it is medium from three attempts on at which no broker served that address within 2 s. "
            "Its cause is settings where the port's host serves Kafka on other ports, else unknown. It is low where a "
            "broker served that address within 2 s of the last attempt: an entry of bootstrap.servers does not "
            "answer. Brokers' own attempts to such ports (a controller that is down) do not count. A scan is one "
            "finding, of low severity: more than 20 ports that are not known as a broker's refused one address that "
            "speaks Kafka, or any addresses together where the capture holds no Kafka at all."
        ),
        headline={
            "broker": "[broker {node}|port {port} of {ip}] refused {attempts:#connection}",
            "elsewhere": "port {port} of {ip} refused {attempts:#connection} from {hosts:list}",
            "scan": "{endpoints:n} ports[ of {ip}| of {addresses:n} hosts] refused {attempts:#connection}",
        },
        sentence={
            "broker": (
                "Port {port} of {ip}[ (broker {node})] refused {attempts:#connection}: nothing listened there "
                "(stopped, or not up yet)."
            ),
            "elsewhere": (
                "Port {port} of {ip} refused {attempts:#connection} from {hosts:list}, from where {clients:list} "
                "{clients:?speaks|speak} Kafka to other ports. Nothing listened there[?served:. Another address "
                "served clients there at once: an entry of a bootstrap.servers may be wrong][?tried:, and attempts "
                "went on].[ The same host serves Kafka on {ports:list}.]"
            ),
            "scan": (
                "{endpoints:n} ports[ of {ip}| of {addresses:n} hosts] refused {attempts:#connection} from "
                "{hosts:list}. None of these ports is known as a broker's: this is a scan rather than clients of Kafka."
            ),
        },
        advice={
            "broker": "See whether the broker runs and listens there (listeners, advertised.listeners).",
            "elsewhere": (
                "See whether that address belongs into bootstrap.servers, and whether something listens there."
            ),
            "scan": "See which program tries so many ports.",
        },
        needs="`connections`",
        cannot_tell=(
            "whether the broker was stopped, had crashed or was not up yet. It cannot tell either which client of "
            "an address asked, and whether an unknown port is meant for Kafka."
        ),
        example="era_2_4_1",
        starts=True,
        heads=SENT_AGAIN,
    ),
    "tls_to_plaintext": Kind(
        cause="settings",
        rule="A TLS connection to a port on which others speak plaintext Kafka.",
        headline="a client speaks TLS to a plaintext port of broker {broker}",
        sentence=(
            "A client at {ip} speaks TLS to port {port} of broker {broker}, where others speak plaintext: "
            "{connections:#connection} (security.protocol)."
        ),
        advice=("Set the client's security.protocol to what that listener speaks (listener.security.protocol.map)."),
        needs="`connections` (protocol, tls)",
        example="rules/tls",
    ),
    "plaintext_to_tls": Kind(
        cause="settings",
        rule="A plaintext Kafka connection that was answered by a TLS alert.",
        headline="a client speaks plaintext to a TLS port of broker {broker}",
        sentence=(
            "A client at {ip} speaks plaintext to a port of broker {broker} that expects TLS: "
            "{connections:#connection} ended with a TLS alert (security.protocol)."
        ),
        advice="Set the client's security.protocol to SSL or SASL_SSL.",
        needs="`connections` (tls)",
        example="rules/tls",
    ),
    "login_failed": Kind(
        cause="security",
        rule="An answer with UNSUPPORTED_SASL_MECHANISM, ILLEGAL_SASL_STATE or SASL_AUTHENTICATION_FAILED.",
        headline={
            "one": "{client:who} was refused {refusals:times} at login",
            "many": "{clients:#client} were refused {refusals:times} at login",
        },
        sentence={
            "one": "{client:who} was refused {refusals:times} at login ({errors:all}).",
            "many": "{clients:#client} ({clients:list}) were refused {refusals:times} at login ({errors:all}).",
        },
        advice="Check sasl.mechanism and the credentials (sasl.jaas.config) of that client.",
        needs="`exchanges` (error)",
        cannot_tell="which part of the credentials is wrong. A broker that closes without an answer is not seen.",
        example="rules/login",
    ),
    "not_authorized": Kind(
        cause="security",
        rule="An answer with an AUTHORIZATION_FAILED error.",
        headline={
            "one": "{client:who} was refused {refusals:times}: no permission",
            "many": "{clients:#client} were refused {refusals:times}: no permission",
        },
        sentence={
            "one": "{client:who} was refused {refusals:times} for lack of permission ({errors:all}).",
            "many": (
                "{clients:#client} ({clients:list}) were refused {refusals:times} for lack of permission "
                "({errors:all})."
            ),
        },
        advice="Grant that principal the permission it needs (kafka-acls), or stop the client from asking.",
        needs="`exchanges` (error)",
        cannot_tell="which resource, where the answer names none.",
        example="rules/permission",
    ),
    "login_cut_off": Kind(
        cause="security",
        other_causes=("unknown",),
        rule=(
            "The connection ended, and SaslHandshake or SaslAuthenticate had no answer. The cause is known where the "
            "broker closed every such connection first."
        ),
        headline={
            "closed": "broker {broker} closed during a login of client {client}",
            "ended": "a login of client {client} at broker {broker} got no answer before the end",
        },
        sentence={
            "closed": (
                "Broker {broker} closed during a login of [{client}|a client without an id]. {requests:#request} "
                "([{apis:list}|unknown]) got no answer[; a reset ended {resets:#connection}]."
            ),
            "ended": (
                "A connection to broker {broker} ended during a login of [{client}|a client without an id]. "
                "{requests:#request} ([{apis:list}|unknown]) got no answer[; a reset ended {resets:#connection}].[ The "
                "client closed {own:#connection} first.]"
            ),
        },
        advice=(
            "Look at the broker's log: some close the connection instead of saying why "
            "(connection.failed.authentication.delay.ms)."
        ),
        needs="`exchanges` (status), `connections` (end_reason, closed_by)",
        cannot_tell="why.",
        example="rules/login",
    ),
}
"""By id."""
