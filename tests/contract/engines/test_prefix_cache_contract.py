"""The prefix cache of an engine whose cache evicts, compared with vLLM's rules."""

from __future__ import annotations

import random
import re

from autoscaler.serving.block_cache import BlockCache
from tests.contract.engines.conftest import Engines
from tests.contract.engines.harness import REAL

_SIZE = 32  # vLLM on CPUs takes multiples of 32
_PREFIXES, _REQUESTS, _PREFIX_TOKENS, _OWN_TOKENS = 100, 240, 560, 60


def _text(rng: random.Random, tokens: int) -> list[str]:
    return rng.choices("abcdefghijklmnopqrstuvwxyz", k=tokens)


def _expected_hits(prompts: list[list[str]], blocks: int) -> int:
    """Tokens of `prompts`, served one after another, that a cache of `blocks` blocks holds."""
    cache, hits = BlockCache(blocks), 0
    for prompt in prompts:
        hashes = [hash(tuple(prompt[:end])) for end in range(_SIZE, len(prompt) + 1, _SIZE)]
        held = cache.match(hashes, (len(prompt) - 1) // _SIZE)
        hits += _SIZE * len(held)
        cache.hold(held)
        held += cache.take(-(-len(prompt) // _SIZE) - len(held))
        for block, value in zip(held, hashes, strict=False):
            cache.store(block, value)
        cache.give_back(held)
    return hits


async def test_hits_follow_vllms_rules_while_blocks_are_evicted(engines: Engines) -> None:
    rng = random.Random(53)
    prefixes = [_text(rng, _PREFIX_TOKENS) for _ in range(_PREFIXES)]
    # Few prefixes are frequent, so that a part of the prompts hits.
    prompts = [
        prefixes[int(_PREFIXES * rng.random() ** 2)] + _text(rng, _OWN_TOKENS)
        for _ in range(_REQUESTS)
    ]
    engine = await engines("cached")
    info = re.search(r'vllm:cache_config_info{[^}]*num_gpu_blocks="(\d+)"', await engine.metrics())
    assert info is not None
    expected = _expected_hits(prompts, int(info[1]))
    endless = _expected_hits(prompts, 10**6)
    queries, hits = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
    before = await engine.gauge(queries), await engine.gauge(hits)
    reported = total = 0
    for prompt in prompts:
        status, body = await engine.generate(1, prompt=("" if REAL else " ").join(prompt))
        assert status == 200
        usage = body["usage"]
        total += usage["prompt_tokens"]
        reported += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    # Some prefixes were evicted, or the test would prove little.
    assert 0.2 * total < expected < endless - 0.05 * total
    assert abs(reported - expected) <= 0.03 * total
    assert await engine.gauge(queries) - before[0] == total
    assert await engine.gauge(hits) - before[1] == reported
    if not REAL:
        assert reported == expected
