"""The configuration of a client is found as kubectl finds it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from lightkube.core.exceptions import ConfigError

from executors.kubernetes.kubeconfig import client_config


def write(path: Path, context: str, current: str, namespace: str = "") -> Path:
    """A kubeconfig with one cluster, user and context."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cluster = {"server": f"https://{path.parent.name}.test", "certificate-authority": "ca.crt"}
    file = {
        "clusters": [{"name": f"c-{context}", "cluster": cluster}],
        "users": [{"name": f"u-{context}", "user": {"client-key": "keys/user.key"}}],
        "contexts": [
            {
                "name": context,
                "context": {
                    "cluster": f"c-{context}", "user": f"u-{context}", "namespace": namespace
                },
            }
        ],
        "current-context": current,
    }  # fmt: skip
    path.write_text(yaml.safe_dump(file))
    return path


def test_files_are_joined_and_a_context_is_chosen(tmp_path: Path) -> None:
    one = write(tmp_path / "one" / "config", "a", "a", "team-a")
    other = write(tmp_path / "other" / "config", "b", "b", "team-b")
    environment = {"KUBECONFIG": os.pathsep.join([str(one), str(tmp_path / "gone"), str(other)])}

    current = client_config("", "", environment)
    assert (current.cluster.server, current.namespace) == ("https://one.test", "team-a")
    chosen = client_config("", "b", environment)
    assert (chosen.cluster.server, chosen.namespace) == ("https://other.test", "team-b")
    # Paths are relative to the file that has them.
    assert chosen.user is not None and chosen.user.client_key is not None
    assert chosen.abs_file(chosen.user.client_key) == str(tmp_path / "other" / "keys" / "user.key")
    assert client_config(str(other), "", environment).context_name == "b"


def test_the_first_file_with_a_name_counts(tmp_path: Path) -> None:
    one = write(tmp_path / "one" / "config", "a", "")
    other = write(tmp_path / "other" / "config", "a", "a")
    found = client_config(os.pathsep.join([str(one), str(other)]), "", {})
    assert found.cluster.server == "https://one.test"


def test_faults_are_named(tmp_path: Path) -> None:
    file = write(tmp_path / "one" / "config", "a", "a")
    with pytest.raises(ConfigError, match="Context 'b' not found"):
        client_config(str(file), "b", {})
    with pytest.raises(ConfigError, match="gone not found"):
        client_config(str(tmp_path / "gone"), "", {})
    file.write_text(file.read_text().replace("- name: u-a", "- name: u-z"))
    with pytest.raises(ConfigError, match="u-a"):
        client_config(str(file), "", {})
