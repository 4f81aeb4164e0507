"""The closed list of engine paths that clients may use, and how the gateway reads their requests.
For clients, other paths do not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from executors.gateway.allowed_fields import (
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    EMBEDDING_FIELDS,
    Check,
)
from executors.gateway.messages_fields import COUNT_TOKENS_FIELDS, MESSAGES_FIELDS
from executors.gateway.pooling_fields import (
    DETOKENIZE_FIELDS,
    RERANK_FIELDS,
    SCORE_FIELDS,
    SCORE_TEXTS,
    TOKENIZE_FIELDS,
)
from executors.gateway.responses_fields import RESPONSES_FIELDS

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
RERANK = "/v1/rerank"
SCORE = "/v1/score"
TOKENIZE = "/tokenize"
DETOKENIZE = "/detokenize"


class Answers(Enum):
    """The form of a path's answers and event streams."""

    OPENAI = "openai"  # chunks of choices, then [DONE]
    RESPONSES = "responses"  # named events, the last one `response.completed`
    MESSAGES = "messages"  # named events, the last one `message_stop`


Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ApiPath:
    """One path.

    fields: checks of the body's fields. prompt: the parts of a checked body that the engine reads
    as the prompt. sides: for pairs of texts, the fields of both sides; the engine reads a text once
    per text of the other side. output_limits: fields that limit the answer's tokens; the first
    field that a body has applies. output_tokens: tokens of the answer if no field limits it, 0 =
    unknown. hand_over: whether prefill and decode may be separate. is_work: whether the engine's
    GPUs compute the answer; other requests do not count as demand and have no SLO.
    """

    fields: Mapping[str, Check]
    prompt: Callable[[Body], object]
    sides: Callable[[Body], Sequence[Sequence[object]]] | None = None
    output_limits: tuple[str, ...] = ()
    output_tokens: int = 0
    hand_over: bool = False
    answers: Answers = Answers.OPENAI
    is_work: bool = True


def _field(name: str) -> Callable[[Body], object]:
    return lambda body: body.get(name)


def _of_responses(body: Body) -> object:
    return _joined(body.get("instructions"), body.get("input"))


def _of_messages(body: Body) -> object:
    return _joined(body.get("system"), body.get("messages"))


def _joined(*parts: object) -> list[object]:
    found = [part if isinstance(part, list) else [part] for part in parts if part is not None]
    return [item for items in found for item in items]


def _of_rerank(body: Body) -> object:
    return _joined(body.get("query"), body.get("documents"))


def _rerank_sides(body: Body) -> Sequence[Sequence[object]]:
    return _joined(body.get("query")), _joined(body.get("documents"))


def _of_score(body: Body) -> object:
    return _joined(*map(body.get, SCORE_TEXTS))


def _score_sides(body: Body) -> Sequence[Sequence[object]]:
    return [_joined(given) for given in map(body.get, SCORE_TEXTS) if given is not None]


def _of_tokenize(body: Body) -> object:
    return body.get("prompt", body.get("messages"))


_LIMITS = ("max_completion_tokens", "max_tokens")
_RERANK = ApiPath(RERANK_FIELDS, _of_rerank, _rerank_sides, output_tokens=1)
_SCORE = ApiPath(SCORE_FIELDS, _of_score, _score_sides, output_tokens=1)
API_PATHS: Mapping[str, ApiPath] = {
    COMPLETIONS: ApiPath(
        COMPLETION_FIELDS, _field("prompt"), output_limits=_LIMITS, hand_over=True
    ),
    CHAT: ApiPath(CHAT_FIELDS, _field("messages"), output_limits=_LIMITS, hand_over=True),
    EMBEDDINGS: ApiPath(EMBEDDING_FIELDS, _field("input"), output_tokens=1, hand_over=True),
    RESPONSES: ApiPath(
        RESPONSES_FIELDS,
        _of_responses,
        output_limits=("max_output_tokens",),
        answers=Answers.RESPONSES,
    ),
    MESSAGES: ApiPath(
        MESSAGES_FIELDS, _of_messages, output_limits=("max_tokens",), answers=Answers.MESSAGES
    ),
    COUNT_TOKENS: ApiPath(
        COUNT_TOKENS_FIELDS, _of_messages, answers=Answers.MESSAGES, is_work=False
    ),
    RERANK: _RERANK,
    "/v2/rerank": _RERANK,
    "/rerank": _RERANK,
    SCORE: _SCORE,
    "/score": _SCORE,
    TOKENIZE: ApiPath(TOKENIZE_FIELDS, _of_tokenize, is_work=False),
    DETOKENIZE: ApiPath(DETOKENIZE_FIELDS, _field("tokens"), is_work=False),
}


def answers_of(path: str) -> Answers:
    """The form of answers and errors of `path`, even if the path is not listed."""
    found = API_PATHS.get(path)
    return found.answers if found is not None else Answers.OPENAI
