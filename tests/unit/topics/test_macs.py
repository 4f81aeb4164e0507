"""No other principal can change, move, repeat or write a signed record or deletion."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.keys import SIGNER, Keys, Principal, credential
from topics.macs import HEADER, MAX_SIGNATURE_AGE_MS, Signer, Verifier
from topics.signing import BODY_SIGNED_TOPICS, Refusal

CLUSTER = "c" * 32
ALL = Keys(CLUSTER)
BODY = b'{"schema_version":1,"node":"n1"}'
NOW_MS = 1_753_000_000_000

Headers = list[tuple[str, bytes]]
TOPICS = [name for name in SIGNER if name not in BODY_SIGNED_TOPICS]


def clock(start_ms: int = NOW_MS) -> Iterator[int]:
    return itertools.count(start_ms)


def signer(keys: Keys = ALL, gateway: str = "gw", start_ms: int = NOW_MS) -> Signer:
    ticks = clock(start_ms)
    return Signer(keys, lambda: next(ticks), gateway)


def believed(topic: str, key: bytes, value: bytes | None, headers: Headers) -> bool:
    return Verifier(ALL).refusal(topic, key, value, headers, NOW_MS) is None


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("value", [BODY, None])
def test_only_records_with_a_valid_signature_are_accepted(topic: str, value: bytes | None) -> None:
    """This holds for deletions too. An unsigned deletion withdraws no service and no node."""
    headers = signer().headers(topic, b"n1", value)
    assert believed(topic, b"n1", value, headers)
    assert Verifier(ALL).refusal(topic, b"n1", value, [], NOW_MS) is Refusal.UNSIGNED
    other = None if value else BODY
    assert not believed(topic, b"n1", other, headers)
    assert not believed(topic, b"n1", (value or b"") + b" ", headers)
    if (
        topic != "telemetry"
    ):  # Telemetry names its model in the body; its record key is only a partition.
        assert not believed(topic, b"n2", value, headers)


@given(st.binary(max_size=60), st.integers(0, 10_000))
def test_any_other_header_is_refused(noise: bytes, at: int) -> None:
    """One changed bit of the header is enough for a refusal."""
    assert not believed("status", b"n1", BODY, [(HEADER, noise)])
    (name, true), *_ = signer().headers("status", b"n1", BODY)
    bit = at % (8 * len(true))
    turned = bytearray(true)
    turned[bit // 8] ^= 1 << bit % 8
    assert not believed("status", b"n1", BODY, [(name, bytes(turned))])


def test_a_signature_of_one_topic_is_invalid_on_another() -> None:
    """Topics of the same signer have different keys."""
    for one, other in itertools.permutations(TOPICS, 2):
        headers = signer().headers(one, b"n1", BODY)
        assert not believed(other, b"n1", BODY, headers), (one, other)


def test_a_node_signs_for_no_other_node_and_a_gateway_for_no_other_gateway() -> None:
    node = Keys(node=credential(CLUSTER, Principal.NODE, "n1"))
    assert believed("status", b"n1", BODY, signer(node).headers("status", b"n1", BODY))
    assert not believed("status", b"n2", BODY, signer(node).headers("status", b"n2", BODY))
    taken = signer(node).headers("status", b"n1", BODY)
    verifier = Verifier(ALL)
    assert verifier.refusal("status", b"n2", BODY, taken, NOW_MS) is Refusal.MISADDRESSED
    gateway = Keys(gateway=credential(CLUSTER, Principal.GATEWAY, "gw"))
    headers = signer(gateway, "gw").headers("telemetry", None, BODY)
    assert believed("telemetry", b"", BODY, headers)
    assert not believed(
        "telemetry", b"", BODY, signer(gateway, "other").headers("telemetry", None, BODY)
    )
    for keys in (node, gateway):
        for topic in ("services", "controls", "alerts", "demand", "supply.prices"):
            assert signer(keys).headers(topic, b"m", BODY) == []


def test_gateways_can_check_routes_but_cannot_delete_them() -> None:
    """All gateways share a key for routes. It is not valid for records to nodes."""
    gateway = Keys(gateway=credential(CLUSTER, Principal.GATEWAY, "gw"))
    reader = Verifier(gateway)
    assert reader.refusal("routes", b"m", BODY, signer().headers("routes", b"m", BODY), 0) is None
    assert reader.refusal("routes", b"m", BODY, [], 0) is Refusal.UNSIGNED
    assert reader.refusal("routes", b"m", None, [], 0) is Refusal.UNSIGNED
    assert Verifier(ALL).refusal("assignments", b"n1", None, [], 0) is Refusal.UNSIGNED


@pytest.mark.parametrize("topic", ["status", "services", "controls"])
def test_a_repeated_old_record_changes_nothing(topic: str) -> None:
    """This holds for the last record too: a repeated status would make a dead node look alive."""
    made = signer()
    first, second = (made.headers(topic, b"n1", BODY) for _ in range(2))
    reader = Verifier(ALL)
    assert reader.refusal(topic, b"n1", BODY, first, NOW_MS) is None
    assert reader.refusal(topic, b"n1", BODY, second, NOW_MS) is None
    for old in (first, second):
        assert reader.refusal(topic, b"n1", BODY, old, NOW_MS) is Refusal.REPLAYED
    assert reader.refused == {(topic, Refusal.REPLAYED): 2}


def test_a_clock_that_is_set_back_does_not_block_a_node() -> None:
    """A new record always gets a later time than the last one that its signer wrote or read."""
    reader = Verifier(ALL)
    before = signer().headers("status", b"n1", BODY)
    assert reader.refusal("status", b"n1", BODY, before, NOW_MS) is None
    restarted = signer(start_ms=NOW_MS - 3_600_000)
    restarted.on_record("status", b"n1", before)
    after = restarted.headers("status", b"n1", BODY)
    assert reader.refusal("status", b"n1", BODY, after, NOW_MS) is None


def test_a_new_reader_refuses_a_copy_of_an_old_record() -> None:
    """Only the broker's clock gives the age. An operator's declarations stay in force for years."""
    late_ms = NOW_MS + MAX_SIGNATURE_AGE_MS + 1
    for topic, expected in (
        ("status", Refusal.STALE), ("telemetry", Refusal.STALE), ("alerts", Refusal.STALE),
        ("services", None),
    ):  # fmt: skip
        headers = signer().headers(topic, b"n1", BODY)
        assert Verifier(ALL).refusal(topic, b"n1", BODY, headers, late_ms) is expected, topic


def test_records_of_both_keys_are_accepted_during_a_rotation() -> None:
    """The keys are first old and new, then new and old, then only new. No
    process stops in between.
    """
    old, new = "c" * 32, "d" * 32
    steps = [old, f"{old}\n{new}", f"{new}\n{old}", new]
    for before, after in itertools.pairwise(steps):
        for writes, reads in ((before, after), (after, before)):
            headers = signer(Keys(writes)).headers("status", b"n1", BODY)
            found = Verifier(Keys(reads)).refusal("status", b"n1", BODY, headers, NOW_MS)
            assert found is None, (writes, reads)
    gone = signer(Keys(old)).headers("status", b"n1", BODY)
    assert Verifier(Keys(new)).refusal("status", b"n1", BODY, gone, NOW_MS) is Refusal.WRONG


def test_unsigned_records_are_accepted_only_without_keys_or_on_request() -> None:
    """An older version writes unsigned records. A wrong signature is refused in every case."""
    lenient = Keys(CLUSTER, unsigned_accepted=True)
    wrong = signer(Keys("x" * 32)).headers("status", b"n1", BODY)
    assert Verifier(Keys()).refusal("status", b"n1", BODY, [], NOW_MS) is None
    assert Verifier(lenient).refusal("status", b"n1", BODY, [], NOW_MS) is None
    assert Verifier(lenient).refusal("status", b"n1", BODY, wrong, NOW_MS) is Refusal.WRONG


def test_records_of_a_batch_without_a_valid_signature_are_found() -> None:
    """The fast check and the slow check find the same records, in any combination and order."""
    one, two = signer(gateway="a"), signer(gateway="b")
    stranger = signer(Keys("x" * 32), "a")
    old = signer(gateway="a", start_ms=NOW_MS - MAX_SIGNATURE_AGE_MS - 5_000)
    values = [b"%d" % number for number in range(7)]
    made = [one, two, stranger, one, old, two]
    headers = [tuple(of.headers("telemetry", None, v)) for of, v in zip(made, values, strict=False)]
    headers.append(())
    expected = {2: Refusal.WRONG, 4: Refusal.STALE, 6: Refusal.UNSIGNED}
    reader = Verifier(ALL)
    for _ in range(2):  # In the first pass the gateways are not cached.
        signers, refused = reader.verify_telemetry(values, headers, [NOW_MS] * 7)
        assert refused == expected
        assert signers == [b"a", b"b", b"a", b"a", b"a", b"b", b""]
    good = [0, 1, 3, 5]
    kept = [values[at] for at in good], [headers[at] for at in good]
    assert reader.verify_telemetry(*kept, [NOW_MS] * 4) == ([b"a", b"b", b"a", b"b"], {})
    swapped = [values[at] for at in (1, 0, 3, 5)]
    assert set(reader.verify_telemetry(swapped, kept[1], [NOW_MS] * 4)[1]) == {0, 1}


def test_unknown_names_use_no_memory() -> None:
    """Otherwise a writer without a key could fill the memory of a reader."""
    reader = Verifier(ALL)
    for number in range(50):
        noise = bytes(24) + b"stranger-%d" % number
        assert reader.refusal("telemetry", None, BODY, [(HEADER, noise)], 0) is Refusal.WRONG
    assert not reader._states and not reader._gateways
