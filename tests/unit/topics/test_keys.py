"""Keys: their sources and the keys that each principal gets. No output shows a key."""

from __future__ import annotations

import pytest

from topics.checks import InvalidValue
from topics.keys import (
    SIGNER,
    Keys,
    Principal,
    credential,
    derive_key,
    gateway_name,
    keys_from_environment,
)

CLUSTER = "c" * 32


def test_keys_come_from_the_environment_or_files_and_are_not_shown() -> None:
    """A short key is refused, and the message contains no part of it."""
    files = {"/k": "f" * 40 + "\n"}
    assert keys_from_environment({"SHOAL_CLUSTER_KEY": "e" * 32}, files.__getitem__) == Keys(
        "e" * 32
    )
    assert keys_from_environment({"SHOAL_NODE_KEY_FILE": "/k"}, files.__getitem__) == Keys(
        node="f" * 40
    )
    assert (
        keys_from_environment({"SHOAL_OPERATOR_KEY_FILE": "/k"}, files.__getitem__).operator
        == "f" * 40
    )
    assert not keys_from_environment({}, files.__getitem__)
    found = keys_from_environment({"SHOAL_ENGINE_KEY": "k" * 32}, files.__getitem__)
    assert (found.engine, bool(found)) == ("k" * 32, False)  # An engine key signs no records.
    with pytest.raises(InvalidValue, match="printable"):
        keys_from_environment({"SHOAL_ENGINE_KEY": "k" * 32 + "\r\nX: y"}, files.__getitem__)
    with pytest.raises(InvalidValue) as error:
        keys_from_environment({"SHOAL_CLUSTER_KEY": "secret"}, files.__getitem__)
    assert "secret" not in str(error.value)
    assert CLUSTER not in repr(Keys(CLUSTER))


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"SHOAL_CLUSTER_KEY": "\n".join(["e" * 32] * 3)}, "SHOAL_CLUSTER_KEY"),
        ({"SHOAL_CLUSTER_KEY": "e" * 32 + "\nshort"}, "SHOAL_CLUSTER_KEY"),
        ({"SHOAL_GATEWAY_KEY": "e" * 64}, "SHOAL_GATEWAY_KEY"),
        ({"SHOAL_ACCEPT_UNSIGNED": "maybe"}, "SHOAL_ACCEPT_UNSIGNED"),
    ],
)
def test_an_invalid_key_is_refused_with_its_variable(environ: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidValue, match=f"^{named}"):
        keys_from_environment(environ, lambda path: path)


def test_two_lines_are_two_keys_and_credentials_contain_both() -> None:
    """During a rotation, the holder of a credential can check signatures of either key."""
    both = Keys(f"{CLUSTER}\n{'d' * 32}")
    for principal, name in (
        (Principal.NODE, "n1"),
        (Principal.OPERATOR, ""),
        (Principal.GATEWAY, "gw"),
    ):
        text = credential(both.cluster, principal, name)
        held = {principal.value: text}
        assert len(text.splitlines()) == 2
        assert Keys(**held).principal_keys(principal, name) == both.principal_keys(principal, name)


def test_every_principal_has_its_own_key() -> None:
    """It differs from the keys of every other principal and topic."""
    keys = Keys(CLUSTER)
    found = [
        keys.principal_keys(Principal.NODE, "x"),
        keys.principal_keys(Principal.NODE, "y"),
        keys.principal_keys(Principal.GATEWAY, "x"),
        keys.principal_keys(Principal.GATEWAYS),
        keys.principal_keys(Principal.OPERATOR),
        keys.principal_keys(Principal.CONTROLLER),
        (derive_key(CLUSTER, "routes", "x"),),
        (CLUSTER,),
    ]
    assert len(set(found)) == len(found)


def test_a_credential_gives_no_key_of_others() -> None:
    node = Keys(node=credential(CLUSTER, Principal.NODE, "n1"))
    gateway = Keys(gateway=credential(CLUSTER, Principal.GATEWAY, "gw"))
    for principal in (Principal.OPERATOR, Principal.CONTROLLER, Principal.GATEWAYS):
        assert node.principal_keys(principal) == ()
    assert gateway.principal_keys(Principal.NODE, "n1") == ()
    assert gateway.principal_keys(Principal.OPERATOR) == ()


def test_workers_of_a_gateway_sign_with_its_key() -> None:
    assert gateway_name("edge.w12") == "edge" and gateway_name("edge") == "edge"
    assert gateway_name("edge.west") == "edge.west"


def test_the_signers_of_topics_equal_the_documented_table() -> None:
    """docs/reference/topic-protection.md has the table."""
    assert {topic for topic, who in SIGNER.items() if who is Principal.OPERATOR} == {
        "services", "controls", "supply.availability", "supply.prices",
    }  # fmt: skip
    assert SIGNER["status"] is Principal.NODE and SIGNER["telemetry"] is Principal.GATEWAY
    assert SIGNER["alerts"] is SIGNER["demand"] is Principal.CONTROLLER
