"""The request fields of rerank, score and tokenization that a client may set.

Fields as of vLLM 0.32; the forms of Jina's and Cohere's rerank requests are the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from executors.gateway.allowed_fields import (
    MESSAGE,
    PART,
    TOOL,
    Check,
    array_of,
    boolean,
    by_type,
    integer,
    integers,
    map_of,
    object_with,
    scalar,
    string,
    word,
)

_TEXT = by_type(str, string, object_with({"content": array_of(PART)}))
_TEXTS = by_type(list, array_of(_TEXT), _TEXT)
_COMMON: dict[str, Check] = {
    "model": string,
    "max_tokens_per_query": integer(0),
    "max_tokens_per_doc": integer(0),
    "truncate_prompt_tokens": integer(-1),
    "truncation_side": word("left", "right"),
    "use_activation": boolean,
    "instruction": string,
    "chat_template_kwargs": map_of(scalar),
    "cache_salt": string,
    "user": string,
}
SCORE_TEXTS = ("text_1", "text_2", "queries", "documents", "items", "data_1", "data_2")
SCORE_FIELDS: Mapping[str, Check] = {**_COMMON, **dict.fromkeys(SCORE_TEXTS, _TEXTS)}
RERANK_FIELDS: Mapping[str, Check] = {
    **_COMMON,
    "query": _TEXT,
    "documents": _TEXTS,
    "top_n": integer(0),
    "return_documents": boolean,  # sent by Jina's clients; vLLM always returns documents
}
TOKENIZE_FIELDS: Mapping[str, Check] = {
    "model": string,
    "prompt": string,
    "messages": array_of(MESSAGE),
    "tools": array_of(TOOL),
    "add_special_tokens": boolean,
    "add_generation_prompt": boolean,
    "continue_final_message": boolean,
    "return_token_strs": boolean,
    "chat_template_kwargs": map_of(scalar),
}
DETOKENIZE_FIELDS: Mapping[str, Check] = {"model": string, "tokens": integers}
