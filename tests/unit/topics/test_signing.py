"""A signed assignment cannot be changed, moved to another node or replayed under another leader."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from topics.codec import encode
from topics.keys import Keys, derive_key
from topics.records import Assignment, DesiredInstance, Routes
from topics.signing import body_refusal, sign_record

CLUSTER = Keys(cluster="c" * 32)
NODE = Keys(node=derive_key("c" * 32, "assignments", "n1"))
WISH = DesiredInstance("a", "m", "aggregated", "g", (0,))
ASSIGNMENT = Assignment("n1", "r/p/owned", 3, 7, 1000, (WISH,))
ROUTES = Routes("m", 3, 7, 1000, 500.0, 50.0)


def wire(**changes: Any) -> bytes:
    """The JSON of a signed assignment. Some fields are changed after signing."""
    value = orjson.loads(encode(sign_record(ASSIGNMENT, CLUSTER, 9000, 900)))
    return orjson.dumps({**value, **changes})


@pytest.mark.parametrize("keys", [CLUSTER, NODE])
def test_the_cluster_and_its_node_accept_a_signed_assignment(keys: Keys) -> None:
    """Both have a key that verifies the signature. It covers the order of fields, and unknown
    fields of a later version; neither is refused.
    """
    assert body_refusal("assignments", wire(), keys) is None
    newer = orjson.loads(wire())
    newer["hint"] = 1.5
    assert body_refusal("assignments", orjson.dumps(newer), keys) == "signature does not match"
    turned = dict(reversed(orjson.loads(wire()).items()))
    assert body_refusal("assignments", orjson.dumps(turned), keys) is None


@pytest.mark.parametrize(
    "change",
    [
        {"node": "n2"},
        {"leader_token": 10**12},
        {"generation": 4},
        {"said_ms": 10**12},
        {"valid_ms": 10**9},
        {"instances": []},
        {"signature": "0" * 64},
    ],
)
def test_an_assignment_changed_after_signing_is_refused(change: dict[str, Any]) -> None:
    """The signature covers node, leader token, generation, validity and body."""
    assert body_refusal("assignments", wire(**change), CLUSTER) == "signature does not match"


def test_unsigned_assignments_are_accepted_only_without_a_key() -> None:
    """With a configured key every record needs a signature."""
    assert body_refusal("assignments", encode(ASSIGNMENT), CLUSTER) == "not signed"
    assert body_refusal("assignments", b"[1]", CLUSTER) == "not signed"
    assert body_refusal("assignments", encode(ASSIGNMENT), Keys()) is None
    assert body_refusal("status", b"{}", CLUSTER) is None


def test_the_key_of_a_node_is_invalid_for_other_nodes_and_models() -> None:
    """An attacker on a node can write neither assignments of other nodes nor routes."""
    other = sign_record(replace(ASSIGNMENT, node="n2"), NODE, 9000, 900)
    assert body_refusal("assignments", encode(other), CLUSTER) == "signature does not match"
    routes = sign_record(ROUTES, NODE, 9000, 900)
    assert body_refusal("routes", encode(routes), CLUSTER) == "not signed"
    assert body_refusal("routes", encode(sign_record(ROUTES, CLUSTER, 9000, 900)), CLUSTER) is None


def test_both_keys_are_accepted_during_a_rotation_and_the_first_signs() -> None:
    """A process with one of two keys accepts records that were signed with either key."""
    both = Keys(cluster="c" * 32 + "\n" + "d" * 32)
    old, new = CLUSTER, Keys(cluster="d" * 32)
    for keys in (old, new):
        assert (
            body_refusal("assignments", encode(sign_record(ASSIGNMENT, keys, 9000, 900)), both)
            is None
        )
    turning = encode(sign_record(ASSIGNMENT, both, 9000, 900))
    assert body_refusal("assignments", turning, old) is None
    assert body_refusal("assignments", turning, new) == "signature does not match"
