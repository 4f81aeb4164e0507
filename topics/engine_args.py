"""Rules for the operator's vLLM arguments: which of them typed fields set, so that operators may
not, and which of them other components must know. Planner and executor each read an engine's
arguments from their own configuration and use the same rules. The facts are for vLLM 0.32 and 0.33.
"""

from __future__ import annotations

from collections.abc import Sequence

# Prefixes of these options are reserved too, because vLLM accepts abbreviated options.
_RESERVED = (
    "--host", "--port", "--uds", "--api-key", "--model", "--config", "--headless",
    "--served-model-name", "--max-model-len", "--shutdown-timeout", "--kv-transfer-config",
    "--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "-dp", "-n", "-r",
    "--max-num-seqs", "--nnodes", "--node-rank", "--master-addr", "--master-port",
    "--enable-sleep-mode", "--enable-lora", "--lora-modules", "--max-lora-rank",
)  # fmt: skip
_RESERVED_FAMILIES = ("--data-parallel", "--ssl")


def reserved_argument(args: Sequence[str]) -> str | None:
    """The first argument in `args` that operators may not set, because a typed field sets it; None
    if all arguments are allowed."""
    for arg in args:
        name = arg.partition("=")[0].replace("_", "-")
        if not name.startswith("-"):
            continue
        shortened = name.startswith("--") and any(own.startswith(name) for own in _RESERVED)
        if shortened or name in _RESERVED or name.startswith(_RESERVED_FAMILIES):
            return arg
    return None


def media_domains(args: Sequence[str]) -> frozenset[str]:
    """The hosts of --allowed-media-domains, from which an engine fetches media. Empty if the
    argument is absent; then requests must not refer to any host."""
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
