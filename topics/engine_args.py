"""Arguments of vLLM that no operator may give, because typed fields decide them, and those that
others than the engine must know.

Planner and executor each read an engine's arguments in their own configuration, and refuse the
same. Facts about vLLM 0.32 and 0.33.
"""

from __future__ import annotations

from collections.abc import Sequence

# Options may be shortened, so beginnings of these count too.
_OWNED = (
    "--host", "--port", "--uds", "--api-key", "--model", "--config", "--headless",
    "--served-model-name", "--max-model-len", "--shutdown-timeout", "--kv-transfer-config",
    "--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "-dp", "-n", "-r",
    "--max-num-seqs", "--nnodes", "--node-rank", "--master-addr", "--master-port",
    "--enable-sleep-mode",
)  # fmt: skip
_OWNED_FAMILIES = ("--data-parallel", "--ssl")


def refused_argument(args: Sequence[str]) -> str | None:
    """The first of an operator's arguments that a typed field decides; None where all may be."""
    for arg in args:
        name = arg.partition("=")[0].replace("_", "-")
        if not name.startswith("-"):
            continue
        shortened = name.startswith("--") and any(own.startswith(name) for own in _OWNED)
        if shortened or name in _OWNED or name.startswith(_OWNED_FAMILIES):
            return arg
    return None


def media_domains(args: Sequence[str]) -> frozenset[str]:
    """The hosts of --allowed-media-domains, from which an engine fetches media; empty where the
    argument is absent: then clients may name none."""
    found: list[str] = []
    collecting = False
    for arg in args:
        name, equals, value = arg.partition("=")
        if arg.startswith("-"):
            collecting = name.replace("_", "-") == "--allowed-media-domains"
            found += [value] if collecting and equals else []
        elif collecting:
            found.append(arg)
    return frozenset(domain.lower() for domain in found)
