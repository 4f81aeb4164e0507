"""Block hashes of traces: the size of a block, and the hit rate of an endless cache."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from streams.files.user_errors import UserError
from streams.tools.replay.trace_blocks import block_size, endless_hit_rate
from streams.tools.replay.traces import load_trace

HEAD = '{"timestamp": %d, "input_length": %d, "output_length": 5, "hash_ids": %s}\n'


def hashes(*rows: list[int]) -> list[array[int]]:
    return [array("q", row) for row in rows]


def test_the_size_of_a_block_follows_from_the_lengths() -> None:
    assert block_size([40_160, 500], hashes([*range(79)], [7])) == 512
    assert block_size([33, 48], hashes([1, 2, 3], [1, 2, 4])) == 16
    # Without the last, partial block.
    assert block_size([35, 70], hashes([1, 2], [1, 2, 3, 4])) == 16
    assert block_size([33, 48], hashes([1, 2, 3], [1])) == 0
    assert block_size([33], []) == 0


def test_a_trace_keeps_the_hashes_of_full_blocks_in_the_order_of_arrival(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(HEAD % (2000, 1100, "[1, 2, 4]") + HEAD % (0, 1024, "[1, 2]"))
    trace = load_trace(file)
    assert trace.block_tokens == 512
    assert [list(own) for own in trace.blocks] == [[1, 2], [1, 2]]
    # The second prompt hits two of its blocks; the first request found an empty cache.
    assert endless_hit_rate(trace.input_tokens, trace.blocks, 512) == 1024 / 2124


def test_the_block_of_the_last_token_never_hits() -> None:
    blocks = hashes([1, 2], [1, 2])
    assert endless_hit_rate([1024, 1024], blocks, 512) == 512 / 2048


def test_unusable_hashes_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text(HEAD % (0, 1024, "[1, 2]") + HEAD % (1, 4000, "[1]"))
    assert load_trace(file).blocks == ()
    file.write_text(HEAD % (0, 1024, '[1, "x"]'))  # a single row, which is also a document
    with pytest.raises(UserError, match=r"hash_ids: \[1, 'x'\] is not allowed; allowed: whole"):
        load_trace(file)
    file.write_text(HEAD % (0, 1024, "7"))
    with pytest.raises(UserError, match=r"hash_ids: '7' is not allowed; allowed: a list"):
        load_trace(file)
