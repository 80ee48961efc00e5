"""Words of Kafka's protocol: the texts that Kafka defines for fields that the schema calls `public`.

The layouts cannot hold a sender to these words: a `public` text can be anything. `redact --names` keeps a text only if
it is one of these words, and gives any other one a stand-in, as it does with names.
"""

from __future__ import annotations

import re

_WORDS = frozenset(
    b"""
    classic consumer connect share streams stream sr kafka-rest
    range roundrobin roundrobinassigner sticky cooperative-sticky uniform simple compatible sessioned eager
    default v0 v1
    preparingrebalance completingrebalance awaitingsync stable dead empty assigning reconciling notready unknown
    ongoing prepareabort preparecommit completeabort completecommit prepareepochfence
    plain gssapi oauthbearer scram-sha-256 scram-sha-512 aws_msk_iam
    user group client-id ip
    producer_byte_rate consumer_byte_rate request_percentage controller_mutation_rate connection_creation_rate
    plaintext ssl sasl_plaintext sasl_ssl controller broker internal external replication
    metadata.version kraft.version transaction.version group.version eligible.leader.replicas.version share.version
    streams.version
    * org.apache.kafka.
    apache-kafka-java kafka-python aiokafka librdkafka confluent-kafka-python confluent-kafka-go confluent-kafka-dotnet
    confluent-kafka-javascript rdkafka-ruby rust-rdkafka node-rdkafka php-rdkafka kgo franz-go sarama kafkajs
    segmentio/kafka-go kafka-go brod kpro ruby-kafka rskafka
    """.split()
)
"""In lower case: types and assignors of groups, states, mechanisms, entities and keys of quotas, usual names of
listeners, features, metrics, client libraries."""
_VERSION = re.compile(
    rb"v?\d{1,4}(\.\d{1,4}){1,3}(-?(rc|ccs|dev|alpha|beta|snapshot)\d{0,3})?(-(lib)?rdkafka-[\d.]{1,12})?"
)


def is_protocol_word(text: bytes) -> bool:
    """Whether a text is a word that Kafka or a well-known client defines, or a version of software."""
    folded = text.lower()
    return folded in _WORDS or _VERSION.fullmatch(folded) is not None
