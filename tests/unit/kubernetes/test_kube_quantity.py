"""Quantities as Kubernetes writes them."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executors.kubernetes.kube_quantity import device_counts, parse_quantity


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("8", 8), (8, 8), ("1k", 1000), ("1Ki", 1024), ("1e3", 1000), ("1E3", 1000), ("1E", 10**18),
        ("1Ei", 2**60), ("2M", 2 * 10**6), ("1.5Gi", 3 * 2**29), ("1500m", Fraction(3, 2)),
        ("3u", Fraction(3, 10**6)), ("7n", Fraction(7, 10**9)), ("5.", 5), (".5", Fraction(1, 2)),
        ("+2", 2), ("-1", -1), ("1e-3", Fraction(1, 1000)), ("0", 0), ("12T", 12 * 10**12),
        ("1P", 10**15), (1.5, Fraction(3, 2)),
    ],
)  # fmt: skip
def test_every_form_of_kubernetes_is_read(text: object, number: object) -> None:
    assert parse_quantity(text) == number


@pytest.mark.parametrize(
    "text", ["", "k", "1 k", "1kk", "1K", "1ki", "0x8", "1e", "1e3k", "nan", "1,5", ".", True, None,
             float("nan"), "\u0661"]
)  # fmt: skip
def test_other_texts_are_refused(text: object) -> None:
    with pytest.raises(ValueError, match="is no quantity"):
        parse_quantity(text)


@given(st.integers(0, 10**12))
def test_the_shortest_form_of_a_whole_number_is_read_back(number: int) -> None:
    text, unit = number, 0
    while text and text % 1000 == 0 and unit < 4:
        text, unit = text // 1000, unit + 1
    assert parse_quantity(f"{text}{['', 'k', 'M', 'G', 'T'][unit]}") == number


def test_devices_are_resources_with_a_domain() -> None:
    assert device_counts({"cpu": "500m", "nvidia.com/gpu": "2", "example.com/shm": "1k"}) == {
        "nvidia.com/gpu": 2, "example.com/shm": 1000,
    }  # fmt: skip
