"""The file of operators, its command, and the variables that declare it."""

from __future__ import annotations

import argparse
import stat
from pathlib import Path

import pytest

from streams.cli import operator as command
from streams.files.user_errors import UserError
from streams.health.operators import Operators, new_operator, operators_from, parse_operators
from streams.health.tokens import NO_TOKEN, BearerToken


def run(path: Path, action: str, name: str = "", **more: object) -> int:
    given = {"right": "operate", "proxy": False, "replace": False} | more
    return command.run(argparse.Namespace(file=path, action=action, name=name, **given))


def test_a_token_is_printed_once_and_only_its_hash_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "operators"
    run(path, "add", "ann")
    token = capsys.readouterr().out.strip()
    assert len(token) > 40 and token not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    known = Operators(path=path)
    found = known.identify(f"Bearer {token}")
    assert found is not None and (found.name, found.may_operate, found.is_person) == (
        "ann", True, True,
    )  # fmt: skip
    for wrong in ("", "Bearer ", f"Bearer {token}x", token, f"Basic {token}", "Bearer \udcff"):
        assert known.identify(wrong) is None


def test_a_removed_or_replaced_token_is_refused_without_a_restart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "operators"
    tokens = []
    for name in ("ann", "bob"):
        run(path, "add", name)
        tokens.append(f"Bearer {capsys.readouterr().out.strip()}")
    known = Operators(path=path)
    run(path, "remove", "bob")
    assert known.identify(tokens[0]) is not None and known.identify(tokens[1]) is None
    with pytest.raises(UserError, match="--replace makes a new token"):
        run(path, "add", "ann")
    capsys.readouterr()
    run(path, "add", "ann", replace=True)
    assert known.identify(tokens[0]) is None
    assert known.identify(f"Bearer {capsys.readouterr().out.strip()}") is not None


def test_the_last_valid_file_stays_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "operators"
    ann, token = new_operator("ann", "read")
    path.write_text(f"{ann.line}\n")
    known = Operators(path=path)
    for broken in (f"{ann.line}\nbob reads -\n", "\x00", f"{ann.line}\n{ann.line}\n"):
        path.write_text(broken)
        assert known.identify(f"Bearer {token}") is not None
    path.unlink()
    assert known.identify(f"Bearer {token}") is not None
    assert caplog.text.count("the last valid file stays in force") == 4
    path.write_text("# empty\n")
    assert known.identify(f"Bearer {token}") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ann", "f:1: right '' is not allowed; allowed: read or operate"),
        ("ann root -", "right 'root' is not allowed"),
        ("ann read", "f:1: ann: not salt and hash"),
        ("ann read 00 00", "not salt and hash"),
        ("\nann read -\nann operate -", "f:3: ann: is in the file twice"),
        ("shared read -", "operator 'shared': is not allowed"),
        ("a/b read -", "operator 'a/b': is not allowed"),
    ],
)
def test_an_invalid_line_is_named(text: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_operators(text, "f")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"SHOAL_OPERATORS_FILE": "/none"}, "SHOAL_OPERATORS_FILE /none: cannot be read"),
        ({"SHOAL_PROXY_USER_HEADER": "X-User"}, "only one is set"),
        ({"SHOAL_TRUSTED_PROXIES": "10.0.0.1"}, "only one is set"),
        ({"SHOAL_PROXY_USER_HEADER": "X-User", "SHOAL_TRUSTED_PROXIES": "10.0.0.1"},
         "needs SHOAL_OPERATORS_FILE"),
        ({"SHOAL_PROXY_USER_HEADER": "X User", "SHOAL_TRUSTED_PROXIES": "10.0.0.1"},
         "'X User' is not allowed"),
        ({"SHOAL_PROXY_USER_HEADER": "X-User", "SHOAL_TRUSTED_PROXIES": "proxy",
          "SHOAL_OPERATORS_FILE": "{file}"}, "'proxy' is not allowed; allowed: addresses"),
    ],
)  # fmt: skip
def test_an_invalid_variable_is_named(environ: dict[str, str], said: str, tmp_path: Path) -> None:
    path = tmp_path / "operators"
    path.write_text("")
    given = {name: value.format(file=path) for name, value in environ.items()}
    with pytest.raises(UserError) as caught:
        operators_from(given, NO_TOKEN)
    assert said in str(caught.value)


def test_the_shared_token_is_a_name_that_no_person_has() -> None:
    known = operators_from({}, BearerToken(text="an-operator-token"))
    found = known.identify("Bearer an-operator-token")
    assert found is not None and (found.name, found.is_person) == ("shared", False)
    assert not operators_from({}, NO_TOKEN)
