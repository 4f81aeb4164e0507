"""The parser process parses heavy bodies one after the other, even if many arrive at once."""

from __future__ import annotations

import asyncio

import orjson

from executors.gateway.body_parsing import BodyParser
from executors.gateway.openai_format import EMBEDDINGS, is_heavy
from tests.hang_limit import HANG_S


async def test_many_concurrent_heavy_bodies_are_all_parsed() -> None:
    body = orjson.dumps({"model": "embed", "input": list(range(1000, 16_000))})
    assert is_heavy((body,))
    parser = BodyParser()
    try:
        async with asyncio.timeout(HANG_S):
            calls = await asyncio.gather(
                *(parser.parse(EMBEDDINGS, (body,), {}) for _ in range(64))
            )
    finally:
        await parser.close()
    assert [call.prompt_tokens_estimate for call in calls] == [15_000] * 64
