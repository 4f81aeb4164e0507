"""Embedded broker: librdkafka's mock cluster, which speaks the Kafka protocol on loopback.

Binds the library in the wheel of confluent-kafka through ctypes. Limits: no CreateTopics, no
compaction, about 5 MB or 100,000 batches per partition, no durability, and no fencing in
transactions. It is for one machine and for fast tests.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
from collections.abc import Iterator, Mapping

_PRODUCER = 0
_TEXT = 512


class EmbeddedBrokerFailed(RuntimeError):
    """The mock cluster could not start; the message names the failed call and the reason."""


def _load() -> ctypes.CDLL:
    files = importlib.metadata.files("confluent-kafka") or []
    for file in files:
        if file.name.startswith(("librdkafka", "rdkafka")) and file.suffix != ".h":
            return ctypes.CDLL(str(file.locate()))
    raise EmbeddedBrokerFailed("confluent-kafka is installed without its librdkafka")


def _bind(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, text, integer = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    for name, result, arguments in (
        ("rd_kafka_conf_new", pointer, ()),
        ("rd_kafka_conf_set", integer, (pointer, text, text, text, ctypes.c_size_t)),
        ("rd_kafka_new", pointer, (integer, pointer, text, ctypes.c_size_t)),
        ("rd_kafka_handle_mock_cluster", pointer, (pointer,)),
        ("rd_kafka_mock_cluster_bootstraps", text, (pointer,)),
        ("rd_kafka_mock_group_initial_rebalance_delay_ms", None, (pointer, ctypes.c_int32)),
        ("rd_kafka_mock_topic_create", integer, (pointer, text, integer, integer)),
        ("rd_kafka_err2str", text, (integer,)),
        ("rd_kafka_destroy", None, (pointer,)),
    ):
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


@contextlib.contextmanager
def embedded_broker(partitions: Mapping[str, int]) -> Iterator[str]:
    """Context of a running broker with these topics (partition count by name on the wire); yields
    "host:port".

    EmbeddedBrokerFailed if the library is missing or reports an error. All data is lost at the end.
    """
    library = _bind(_load())
    message = ctypes.create_string_buffer(_TEXT)
    conf = library.rd_kafka_conf_new()
    for key, value in ((b"test.mock.num.brokers", b"1"), (b"log_level", b"3")):
        if library.rd_kafka_conf_set(conf, key, value, message, _TEXT) != 0:
            raise EmbeddedBrokerFailed(f"{key.decode()}: {message.value.decode()}")
    # The mock cluster lives inside a client handle; a producer without topics costs nothing.
    handle = library.rd_kafka_new(_PRODUCER, conf, message, _TEXT)
    if not handle:
        raise EmbeddedBrokerFailed(f"rd_kafka_new: {message.value.decode()}")
    try:
        cluster = library.rd_kafka_handle_mock_cluster(handle)
        library.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, 10)
        for topic, count in partitions.items():
            error = library.rd_kafka_mock_topic_create(cluster, topic.encode(), count, 1)
            if error:
                why = library.rd_kafka_err2str(error).decode()
                raise EmbeddedBrokerFailed(f"topic {topic}: {why}")
        yield library.rd_kafka_mock_cluster_bootstraps(cluster).decode()
    finally:
        library.rd_kafka_destroy(handle)
