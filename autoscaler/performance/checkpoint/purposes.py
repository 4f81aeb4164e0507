"""Purpose of a checkpoint: text generation, pooling, or a part of another model.

Pooling models (embeddings, rerankers, classifiers, reward models) answer after one pass over their
input. Encoders have no KV cache at all.
"""

from __future__ import annotations

import re

from autoscaler.performance.checkpoint.keys import Keys

ENCODERS = frozenset({
    "albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "ernie",
    "eurobert", "gte", "jina_bert", "jina_bert_v2", "modernbert", "mpnet", "new", "neobert",
    "nomic_bert", "roberta", "snowflake_gte", "splade", "xlm-roberta", "xlm-roberta-flash",
    "xlm_roberta", "xlnet", "xmod",
})  # fmt: skip
GATED_ENCODERS = frozenset({"eurobert", "gte", "modernbert", "neobert", "new", "nomic_bert",
                            "snowflake_gte"})  # fmt: skip
"""Encoders whose MLP has three matrices; that of the others has two."""
_POOLS = re.compile(
    r"(ForSequenceClassification|ForTokenClassification|RewardModel|ForSequenceEmbedding"
    r"|EmbeddingModel|ForTextEncoding|ForReward|ForRetrieval|ForEmbedding|Reranker"
    r"|For(Audio|Image|Video)Classification|ClassificationModel)\w*\Z"
    r"|(?<!LMHead)(?<!Chat)(?<!ChatGLM)(?<!DashengLM)(?<!MossAudio)(?<!Ultravox)Model\Z"
)
"""As vLLM: a class that is a model without a head ("LlamaModel") embeds, with a few exceptions."""
_DRAFTS = re.compile(
    r"eagle|medusa|mlpspeculator|speculator|dflash|dspark|hydra|mtpmodel|nextn", re.I
)
_DRAFT_KEYS = ("draft_vocab_size", "speculators_model_type", "speculators_config", "eagle_config")
_DIFFUSION = re.compile(
    r"llada|\bdream|diffu|bd3lm|mdlm|sdar|fast_dllm|flux|stable[-_]?diffusion|unet|dit\b", re.I
)
_IN_ALL_LAYERS = "a language model or an encoder that vLLM serves on its own"


def names_of(keys: Keys) -> tuple[str, ...]:
    """The classes in `architectures`; () if unset."""
    listed = keys.config.get("architectures")
    return tuple(one for one in listed if isinstance(one, str)) if isinstance(listed, list) else ()


def pools(kind: str, names: tuple[str, ...]) -> bool:
    """Whether a model of type `kind` with these classes answers without generating tokens."""
    return kind in ENCODERS or any(_POOLS.search(one) for one in names)


def refuse_parts(kind: str, names: tuple[str, ...], keys: Keys) -> None:
    """InvalidValue for a draft head and for a diffusion model, which have no decode iterations of
    their own."""
    key = next((one for one in _DRAFT_KEYS if keys.config.get(one)), "")
    draft = key or next((one for one in (kind, *names) if _DRAFTS.search(one)), "")
    if draft:
        why = f"{draft} (a draft for speculative decoding, served with its target model)"
        raise keys.error("architectures", why, _IN_ALL_LAYERS)
    diffusion = next((one for one in (kind, *names) if _DIFFUSION.search(one)), "")
    if diffusion:
        why = f"{diffusion} (a diffusion model, whose steps are not modelled)"
        raise keys.error("architectures", why, _IN_ALL_LAYERS)
