"""`adapters` of a model in shoal.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from streams.files.shoal_yaml import Config, load_config
from streams.files.user_errors import UserError
from streams.gateway_models_option import declared_options
from topics.lora_adapters import Adapter

FILE = """
regions:
  eu:
    h100: {{gpu: H100, max: 4, price: 3.0}}
models:
  chat:
    source: {source}
    slo: {{ttft: 2s, tpot: 60ms}}
    {extra}
{more}
"""
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def config(tmp_path: Path, extra: str, more: str = "", source: str = LLAMA) -> Config:
    path = tmp_path / "shoal.yaml"
    path.write_text(FILE.format(source=source, extra=extra, more=more))
    return load_config(path)


def test_adapters_are_read_with_their_rank(tmp_path: Path) -> None:
    found = config(tmp_path, "adapters: {legal: acme/legal, sql: {weights: /srv/sql, rank: 64}}")
    service = found.cluster.services[0]
    assert service.adapters == (Adapter("legal", "acme/legal"), Adapter("sql", "/srv/sql", 64))
    assert not service.disaggregate
    assert declared_options(found.cluster)[1:] == [
        "--declared=chat=legal", "--declared=chat=sql",
    ]  # fmt: skip


def test_their_memory_is_part_of_the_plan(tmp_path: Path) -> None:
    """Two adapters of rank 64 reserve 64 ranks in two slots; --max-loras changes the slots."""
    extra = "adapters: {legal: acme/legal, sql: {weights: /srv/sql, rank: 64}}"
    two = config(tmp_path, extra).cluster.services[0].architecture
    extra += "\n    engine: many"
    engine = "engines:\n  many: {args: [--max-loras=4]}"
    four = config(tmp_path, extra, engine).cluster.services[0].architecture
    assert two.adapter_bytes > 0.0
    assert four.adapter_bytes == pytest.approx(2.0 * two.adapter_bytes)


def test_disaggregation_may_be_declared(tmp_path: Path) -> None:
    extra = "adapters: {legal: acme/legal}\n    disaggregate: true"
    assert config(tmp_path, extra).cluster.services[0].disaggregate


OTHER = "  legal: {source: openai/gpt-oss-20b, slo: {ttft: 2s, tpot: 60ms}}"
SHARED = "  code: {source: openai/gpt-oss-20b, slo: {ttft: 2s, tpot: 60ms}, adapters: {legal: a/b}}"


@pytest.mark.parametrize(
    ("extra", "more", "words"),
    [
        ("adapters: [a]", "", "models.chat.adapters: a mapping is expected"),
        ("adapters: {legal: here}", "", "an absolute path, or a repository"),
        ("adapters: {legal: ../up}", "", "an absolute path, or a repository"),
        ("adapters: {legal: {weights: a/b, rank: 0}}", "", "adapters.legal.rank: 0"),
        ("adapters: {legal: {rank: 8}}", "", "adapters.legal.weights: is missing"),
        ("adapters: {legal: {weights: a/b, x: 1}}", "", "adapters.legal.x: unknown key"),
        ('adapters: {"a b": a/b}', "", "adapters.a b"),
        ("adapters: {chat: a/b}", "", "chat is also the name of a model"),
        (f"adapters: {{{LLAMA}: a/b}}", "", "is also the name of a model"),
        ("adapters: {legal: a/b}", OTHER, "legal is also the name of a model"),
        ("adapters: {legal: a/b}", SHARED, "legal is also the name of an adapter of"),
    ],
)
def test_a_refusal_names_the_key(tmp_path: Path, extra: str, more: str, words: str) -> None:
    with pytest.raises(UserError) as refused:
        config(tmp_path, extra, more)
    assert words in str(refused.value)
    assert "shoal.yaml" in str(refused.value)


def test_an_argument_that_adapters_decide_is_refused(tmp_path: Path) -> None:
    for arg in ("--enable-lora", "--lora-modules", "--max-lora-rank=8", "--max-lora-r=8"):
        with pytest.raises(UserError, match=r"engines\.e\.args"):
            config(tmp_path, "engine: e", f"engines:\n  e: {{args: ['{arg}']}}")


def test_too_many_adapters_are_refused(tmp_path: Path) -> None:
    names = ", ".join(f"a{n}: o/a" for n in range(129))
    with pytest.raises(UserError, match="at most 128"):
        config(tmp_path, f"adapters: {{{names}}}")


def test_a_model_that_cannot_have_adapters_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"models\.chat\.adapters: .*258048"):
        config(
            tmp_path, "adapters: {legal: a/b}\n    max_len: 4096", source="google/gemma-3-27b-it"
        )
