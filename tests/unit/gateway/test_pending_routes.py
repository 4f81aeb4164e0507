"""Model names that a gateway knows before any model has routes."""

from __future__ import annotations

from executors.gateway.pending_routes import declared_names


def test_an_alias_stands_for_a_model_unless_it_is_ambiguous() -> None:
    named = declared_names(["a=org/one", "b=org/two", "c=org/two", "d", "e=d"])
    assert named == {"a": "a", "b": "b", "c": "c", "d": "d", "e": "e", "org/one": "a"}
