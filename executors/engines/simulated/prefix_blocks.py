"""Prefix caching of a simulated engine: vLLM's arguments, and the blocks of a prompt.

The engine caches prefixes only with `--enable-prefix-caching`, because drawn prompts repeat words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autoscaler.serving.engine_setup import InvalidValue

_BLOCK_TOKENS = 16  # vLLM's default on GPUs
_MOST_BLOCK_TOKENS = 4096


def block_tokens(args: Sequence[str]) -> int:
    """Tokens of a block by vLLM's arguments `args`; 0 = no prefix cache. Raises InvalidValue for a
    block size that is not a whole number of tokens."""
    given = ""
    is_enabled = False
    for at, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        name = name.replace("_", "-")
        is_enabled |= name == "--enable-prefix-caching"
        if name == "--block-size":
            given = value if equals else "".join(args[at + 1 : at + 2])
    if not is_enabled:
        return 0
    if given and not (given.isdigit() and 1 <= int(given) <= _MOST_BLOCK_TOKENS):
        raise InvalidValue("--block-size", given, f"a whole number from 1 to {_MOST_BLOCK_TOKENS}")
    return int(given or _BLOCK_TOKENS)


def prompt_texts(raw: Mapping[str, Any], chat: bool) -> tuple[Sequence[object], ...]:
    """The tokens of each prompt in the checked request `raw`, which are words or token ids."""
    if chat:
        words: list[object] = []
        for message in raw["messages"]:
            content = message.get("content")
            parts = [content] if isinstance(content, str) else content or ()
            for part in parts:
                words += (part if isinstance(part, str) else part["text"]).split()
        return (words,)
    prompt = raw["prompt"]
    if isinstance(prompt, str):
        return (prompt.split(),)
    if isinstance(prompt[0], int):
        return (prompt,)
    return tuple(one.split() if isinstance(one, str) else one for one in prompt)


def block_hashes(model: str, tokens: Sequence[object], output: int, size: int) -> list[int]:
    """Hashes of the full blocks of a prompt and its answer of `output` tokens. Different models, so
    adapters too, share no block."""
    whole = [*tokens, *("a",) * output]
    found: list[int] = []
    last = hash(model)
    for end in range(size, len(whole) + 1, size):
        last = hash((last, *whole[end - size : end]))
        found.append(last)
    return found
