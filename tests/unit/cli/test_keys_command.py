"""`shoal keys`: files that only their owner can read, and key rotation without stopping a
process."""

from __future__ import annotations

import itertools
import stat
from pathlib import Path

import pytest

from streams.cli.main import main
from streams.files.keyfiles import operator_keys, run_key_file, write_key
from topics.keys import GATEWAY_KEY, NODE_KEY, OPERATOR_KEY, Keys, Principal, keys_from_environment
from topics.macs import Signer, Verifier


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.key"
    assert main(["keys", "new", "--out", str(path)]) == 0
    return path


def derive(cluster: Path, *whom: str) -> Path:
    out = cluster.with_name("derived.key")
    options = ["--cluster-key-file", str(cluster), "--out", str(out)]
    assert main(["keys", "derive", *whom, *options]) == 0
    return out


@pytest.mark.parametrize(
    ("whom", "variable", "principal", "name"),
    [
        (("--node", "eu.l4.spot.3"), NODE_KEY, Principal.NODE, "eu.l4.spot.3"),
        (("--gateway", "edge"), GATEWAY_KEY, Principal.GATEWAY, "edge"),
        (("--operator",), OPERATOR_KEY, Principal.OPERATOR, ""),
    ],
)
def test_derived_keys_match_those_of_the_cluster_and_only_the_owner_can_read_them(
    whom: tuple[str, ...],
    variable: str,
    principal: Principal,
    name: str,
    cluster: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = derive(cluster, *whom)
    keys = keys_from_environment(
        {f"{variable}_FILE": str(out)}, lambda path: Path(path).read_text()
    )
    known = Keys(cluster.read_text().strip()).principal_keys(principal, name)
    assert keys.principal_keys(principal, name) == known and known
    shown = "".join(capsys.readouterr())
    for path in (cluster, out):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.read_text().strip() not in shown


def test_an_existing_key_is_not_overwritten(
    cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = cluster.read_text()
    assert main(["keys", "new", "--out", str(cluster)]) == 2
    options = ["--cluster-key-file", str(cluster), "--out", str(cluster)]
    assert main(["keys", "derive", "--operator", *options]) == 2
    assert cluster.read_text() == before
    assert "rotate" in capsys.readouterr().err


def test_processes_trust_each_other_between_any_two_steps_of_a_rotation(cluster: Path) -> None:
    """Processes are restarted one after the other, so some still have the keys of the previous
    step."""
    texts = [(cluster.read_text().strip(), derive(cluster, "--node", "n1").read_text().strip())]
    for step in ("--add", "--switch", "--drop"):
        assert main(["keys", "rotate", step, "--cluster-key-file", str(cluster)]) == 0
        node = derive(cluster, "--node", "n1").read_text().strip()
        texts.append((cluster.read_text().strip(), node))
    assert len(set(texts)) == 4
    for before, after in itertools.pairwise(texts):
        for (_, writes), (reads, _) in ((before, after), (after, before), (after, after)):
            headers = Signer(Keys(node=writes), lambda: 1000).headers("status", b"n1", b"{}")
            assert Verifier(Keys(reads)).refusal("status", b"n1", b"{}", headers, 1000) is None
    old, new = texts[0][0], texts[-1][0]
    assert old != new and "\n" not in new


@pytest.mark.parametrize("steps", [["--switch"], ["--drop"], ["--add", "--add"]])
def test_rotation_steps_are_accepted_only_in_order(
    steps: list[str], cluster: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = [main(["keys", "rotate", step, "--cluster-key-file", str(cluster)]) for step in steps]
    assert codes[-1] == 2 and "allowed: --" in capsys.readouterr().err


def test_without_a_cluster_key_one_line_names_the_variable_to_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHOAL_CLUSTER_KEY_FILE", raising=False)
    out = ["--out", str(tmp_path / "k")]
    assert main(["keys", "derive", "--operator", *out]) == 2
    assert "SHOAL_CLUSTER_KEY_FILE is not set" in capsys.readouterr().err
    empty = tmp_path / "empty"
    empty.write_text("\n")
    given = ["--cluster-key-file", str(empty)]
    assert main(["keys", "derive", "--operator", *given, *out]) == 2
    assert "at least 32 characters" in capsys.readouterr().err


def test_commands_sign_with_the_key_of_this_users_own_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key of a run is used only for the broker of that run. A key that the user names takes
    precedence.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("SHOAL_CLUSTER_KEY", raising=False)
    path = run_key_file("127.0.0.1:1", "shoal.")
    write_key(path, "a" * 64)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert operator_keys("127.0.0.1:1", "shoal.").operator == "a" * 64
    assert not operator_keys("127.0.0.1:2", "shoal.")
    monkeypatch.setenv("SHOAL_OPERATOR_KEY", "b" * 64)
    assert operator_keys("127.0.0.1:1", "shoal.").operator == "b" * 64
