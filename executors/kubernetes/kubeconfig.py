"""The configuration of a client, found as kubectl finds it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightkube import KubeConfig
    from lightkube.config.kubeconfig import SingleConfig

_FILE_FIELDS = ("certificate_auth", "client_cert", "client_key", "token_file")


def client_config(
    paths: str, context: str, environment: Mapping[str, str] = os.environ
) -> SingleConfig:
    """The configuration of a client. Raises ConfigError of lightkube.

    paths: kubeconfig files, separated as in PATH. If it is empty, a pod uses its service account,
    except if `context` is given; otherwise KUBECONFIG and ~/.kube/config count. context: name, or
    "" for the current one.
    """
    from lightkube import KubeConfig
    from lightkube.core.exceptions import ConfigError

    if not paths and not context:
        try:
            return _of(KubeConfig.from_service_account(), context)
        except ConfigError:
            pass  # This process does not run in a pod.
    listed = paths or environment.get("KUBECONFIG") or "~/.kube/config"
    files = [Path(one).expanduser() for one in listed.split(os.pathsep) if one]
    # kubectl skips missing files too, if there is another one.
    present = [one for one in files if one.is_file()] or files[:1]
    return _of(_joined([(one, KubeConfig.from_file(one)) for one in present]), context)


def _of(config: KubeConfig, context: str) -> SingleConfig:
    from lightkube.core.exceptions import ConfigError

    try:
        found = config.get(context or None)
    except KeyError as error:
        raise ConfigError(f"no cluster or user {error} for the context") from None
    if found is None:
        raise ConfigError("no context")
    return found


def _joined(configs: list[tuple[Path, KubeConfig]]) -> KubeConfig:
    """One configuration: the first file that has a name counts for it. Paths become absolute,
    because each is relative to its file."""
    from lightkube import KubeConfig

    parts: dict[str, dict[str, Any]] = {"clusters": {}, "contexts": {}, "users": {}}
    for file, config in reversed(configs):
        for name, part in parts.items():
            for key, entry in getattr(config, name).items():
                part[key] = entry
                for field in _FILE_FIELDS:
                    if path := getattr(entry, field, None):
                        setattr(entry, field, str(file.parent.absolute() / path))
    current = next((one.current_context for _, one in configs if one.current_context), None)
    return KubeConfig(current_context=current, **parts)
