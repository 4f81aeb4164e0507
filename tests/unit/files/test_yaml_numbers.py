"""Numbers in YAML files mean what a reader expects, not what YAML 1.1 defines."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.files import units
from streams.files.feed_files import read_feed
from streams.files.yaml_tree import ConfigError, read_text


def taken(value: str) -> object:
    return read_text(f"key: {value}".encode(), "file", "keys").take("key", lambda found: found)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("5e-5", 5e-5), ("1e3", 1000.0), ("1E3", 1000.0), ("-2.5e+1", -25.0), ("2.", 2.0),
        (".5", 0.5), ("1_000", 1000), ("0", 0), ("-7", -7), ("0x10", 16), ("1e", "1e"),
        ("010", "010"), ("1:30", "1:30"), ("190:20:30.15", "190:20:30.15"), ("0x_", "0x_"),
        ("10:00", "10:00"), ("'5'", "5"),
    ],
)  # fmt: skip
def test_a_plain_number_has_its_decimal_value(written: str, meant: object) -> None:
    found = taken(written)
    assert (found, type(found)) == (meant, type(meant))


@pytest.mark.parametrize("written", ["010", "1:30"])
def test_octal_and_sexagesimal_numbers_are_refused(written: str) -> None:
    section = read_text(f"max: {written}".encode(), "file", "keys")
    with pytest.raises(ConfigError, match=rf"file:1: max: '{written}' is not allowed; allowed: a"):
        section.take("max", units.count(0, 100))


def test_a_price_with_an_exponent_is_accepted() -> None:
    (price,) = read_feed("prices", b"us/l40s/spot: 1e-1", "prices", 1)
    assert price.usd_per_node_h == 0.1


def test_a_rewritten_section_keeps_its_numbers() -> None:
    text = read_text(b"a: {rate: 1e3, window: '10:00', max: 12}", "file", "keys")
    section = text.section("a")
    assert section is not None
    written = section.as_yaml()
    assert "!!" not in written
    again = read_text(written.encode(), "file", "keys")
    found = [again.take(key, lambda value: value) for key in ("rate", "window", "max")]
    assert found == [1000.0, "10:00", 12]


def test_a_demand_file_accepts_exponents(tmp_path: Path) -> None:
    path = tmp_path / "demand.yaml"
    path.write_text("chat: {req_per_s: 1e1}")
    section = read_text(path.read_bytes(), str(path), "models").section("chat")
    assert section is not None
    assert section.take("req_per_s", units.number(0.0, 1e9)) == 10.0
