"""Hashes of the beginning of a prompt."""

from __future__ import annotations

from dataclasses import replace

import orjson

from executors.gateway.openai_format import ApiCall, parse_call
from executors.gateway.prefix_blocks import BLOCK_BYTES, prefix_blocks


def call(path: str = "/v1/chat/completions", **body: object) -> ApiCall:
    return parse_call(path, orjson.dumps({"model": "m", **body}))


def turns(*texts: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text} for text in texts]


def test_later_turns_have_the_blocks_of_earlier_ones() -> None:
    first = prefix_blocks(call(messages=turns("a" * 3000)))
    later = prefix_blocks(call(messages=turns("a" * 3000, "b" * 5000), temperature=0.5))
    assert len(first) == 2
    assert later[:2] == first
    assert len(later) == 7
    other = prefix_blocks(call(messages=turns("c" + "a" * 2999)))
    assert not set(other) & set(first)


def test_fields_before_the_prompt_have_no_effect_but_the_adapter_has() -> None:
    plain = call(messages=turns("a" * 3000))
    before = call(temperature=0.5, messages=turns("a" * 3000))
    assert prefix_blocks(plain) == prefix_blocks(before)
    assert not set(prefix_blocks(plain)) & set(prefix_blocks(replace(plain, adapter="sql")))


def test_completions_and_bodies_in_parts_have_blocks_and_short_prompts_none() -> None:
    whole = call("/v1/completions", prompt="a" * 3000)
    (text,) = whole.body_core
    parts = replace(whole, body_core=(text[:1500], text[1500:]))
    assert prefix_blocks(parts) == prefix_blocks(whole) != ()
    assert prefix_blocks(call("/v1/completions", prompt="short")) == ()
    # 32 blocks of 1 KiB, then 120 of 4 KiB
    assert len(prefix_blocks(call("/v1/completions", prompt="a" * (600 * BLOCK_BYTES)))) == 152
    long, longer = (
        prefix_blocks(call("/v1/completions", prompt="a" * (size * BLOCK_BYTES)))
        for size in (50, 90)
    )
    assert len(long) == 36
    assert longer[:36] == long
