"""The prefix cache of the batching machine, by vLLM's rules."""

from __future__ import annotations

from itertools import count

from autoscaler.serving.batching import Batcher
from autoscaler.serving.block_cache import BlockCache
from autoscaler.serving.engine_requests import Finished, FirstToken, Limits, Part, Work

BLOCK = 10


class TokenMs:
    """1 ms per computed token, 1 ms per decode iteration."""

    def prefill_ms(self, tokens: float, context: float = 0.0) -> float:
        return tokens

    def decode_ms(self, batch: float, context_tokens: float) -> float:
        return 1.0

    def mixed_ms(
        self, prompt_tokens: float, prompt_context: float, decodes: float, context_tokens: float
    ) -> float:
        return prompt_tokens


def engine(kv_tokens: int = 1000, max_seqs: int = 4) -> Batcher:
    return Batcher(TokenMs(), Limits(max_seqs, kv_tokens, 500, block_tokens=BLOCK))


def serve(machine: Batcher, work: Work) -> FirstToken:
    """Serve `work` alone, and return its first token, whose time counts from its submission."""
    started_ms = machine._now_ms
    machine.submit(work)
    first = None
    for event in machine.advance(started_ms + 10_000.0):
        if isinstance(event, FirstToken):
            first = event._replace(at_ms=event.at_ms - started_ms)
    assert first is not None
    return first


def test_repeated_full_blocks_cost_no_time() -> None:
    machine = engine()
    assert serve(machine, Work(1, 55, 1, blocks=(1, 2, 3, 4, 5))) == FirstToken(1, 55.0, 0)
    # The five full blocks hit; the last five tokens are computed.
    assert serve(machine, Work(2, 55, 1, blocks=(1, 2, 3, 4, 5))) == FirstToken(2, 5.0, 50)
    # A hash stands for its whole prefix, so nothing hits after the first new block.
    assert serve(machine, Work(3, 55, 1, blocks=(1, 2, 9, 4, 5))) == FirstToken(3, 35.0, 20)
    assert (machine.cache_queries, machine.cache_hits) == (165, 70)


def test_the_last_prompt_token_is_always_computed() -> None:
    machine = engine()
    serve(machine, Work(1, 50, 1, blocks=(1, 2, 3, 4, 5)))
    assert serve(machine, Work(2, 50, 1, blocks=(1, 2, 3, 4, 5))).cached_tokens == 40


def test_an_answer_is_cached_except_its_last_token() -> None:
    machine = engine()
    serve(machine, Work(1, 10, 21, blocks=(1, 2, 3)))
    assert serve(machine, Work(2, 31, 1, blocks=(1, 2, 3))).cached_tokens == 30
    serve(machine, Work(3, 10, 20, blocks=(4, 5, 6)))
    assert serve(machine, Work(4, 31, 1, blocks=(4, 5, 6))).cached_tokens == 20


def test_prompts_of_one_iteration_share_blocks() -> None:
    machine = engine()
    machine.submit(Work(1, 45, 1, blocks=(1, 2, 3, 4)))
    machine.submit(Work(2, 45, 1, blocks=(1, 2, 3, 4)))
    firsts = [one for one in machine.advance(1e4) if isinstance(one, FirstToken)]
    assert firsts == [FirstToken(1, 50.0, 0), FirstToken(2, 50.0, 40)]


def test_the_end_of_the_oldest_prefix_is_evicted_first() -> None:
    machine = engine(kv_tokens=100)
    serve(machine, Work(1, 45, 1, blocks=(1, 2, 3, 4)))
    serve(machine, Work(2, 45, 1, blocks=(11, 12, 13, 14)))
    # 30 tokens take the partial block of request 1 and then its last two blocks.
    serve(machine, Work(3, 30, 1))
    assert serve(machine, Work(4, 45, 1, blocks=(1, 2, 3, 4))).cached_tokens == 20
    # The three new blocks of request 4 were the partial block and the last two of request 2.
    assert serve(machine, Work(5, 45, 1, blocks=(11, 12, 13, 14))).cached_tokens == 20


def test_shared_blocks_count_once_and_are_not_evicted_while_held() -> None:
    machine = engine(kv_tokens=100)
    machine.submit(Work(1, 75, 3, blocks=(1, 2, 3, 4, 5, 6, 7)))
    machine.advance(1.0)
    machine.submit(Work(2, 75, 3, blocks=(1, 2, 3, 4, 5, 6, 7)))
    events = machine.advance(78.0)
    assert machine.running == 2
    assert machine.kv_usage == 0.9
    assert FirstToken(1, 75.0, 0) in events
    machine.advance(1e4)
    assert machine.kv_usage == 0.0


def test_a_preempted_request_finds_its_blocks_again_and_counts_once() -> None:
    machine = engine(kv_tokens=100)
    hashes = count(1)
    for request in (1, 2):
        machine.submit(Work(request, 40, 20, blocks=[next(hashes) for _ in range(6)]))
    events = machine.advance(1e4)
    assert machine.preemptions >= 1
    assert {one.id for one in events if isinstance(one, Finished)} == {1, 2}
    assert machine.cache_queries == 80
    assert machine.cache_hits == 0
    assert machine.kv_usage == 0.0


def test_a_kept_prefill_holds_its_blocks_until_its_release() -> None:
    machine = engine(kv_tokens=100)
    serve(machine, Work(1, 45, 1, Part.PREFILL, blocks=(1, 2, 3, 4)))
    assert machine.kv_usage == 0.5
    assert machine.release(1)
    assert machine.kv_usage == 0.0
    assert serve(machine, Work(2, 45, 1, blocks=(1, 2, 3, 4))).cached_tokens == 40


def test_equal_blocks_stay_cached_until_the_last_copy_is_evicted() -> None:
    cache = BlockCache(3)
    first, second = cache.take(2)
    cache.store(first, 7)
    cache.store(second, 7)
    cache.give_back([first])
    cache.take(2)  # the unused block, and the first copy
    assert cache.match([7], 1) == [second]
    cache.flush()
    assert cache.match([7], 1) == []
    assert cache.cached == 0
