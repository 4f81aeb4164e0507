"""The table of trace formats: how each is recognised, with its columns and units.

A format is recognised by columns that no other format has; file names and extra columns do not
matter. Names are compared in lower snake case: `ContextTokens` and "Context tokens" are
`context_tokens`; a nested key is `out.meta_info.prompt_tokens`. Other tables are read by the usual
names of columns (`USUAL`), or by names that the user gives. docs/reference/formats.md describes the
formats for users.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

FIELDS = ("time", "input", "output", "model", "session", "delay", "latency", "chat", "parent")
"""Contents of a column. latency: from the arrival to the end of the answer. chat, parent: ids of
conversations that name the previous request.
"""
NEEDED = ("time", "input", "output")

Columns = Mapping[str, tuple[str, ...]]
"""For each field the names of its columns. The first one that a row has counts."""


@dataclass(frozen=True, slots=True)
class Format:
    """One format. name: for users. needs: the columns that identify it, each with its spellings.

    time_unit: unit of times that are bare numbers ("s", "ms"; "": determined from the values).
    delay_unit, latency_unit: likewise. finished: whether times are the ends of answers, so that the
    arrival is earlier by the latency. only: a column and the value that marks requests. turns:
    whether requests of one row are turns of a session. counted: whether a row stands for several
    requests (`BUCKETS`), whose tokens it sums up.
    """

    name: str
    needs: tuple[str, ...]
    columns: Columns = field(default_factory=dict)
    time_unit: str = ""
    delay_unit: str = "ms"
    latency_unit: str = "s"
    finished: bool = False
    only: tuple[str, str] | None = None
    turns: bool = True
    counted: bool = False


USUAL: Columns = {
    "time": (
        "timestamp", "time", "ts", "arrival_time", "arrival_timestamp", "arrival", "arrived_at",
        "request_arrival_time", "request_received_ts", "received_at", "request_time",
        "request_timestamp", "request_start_time", "request_start", "start_time", "start_times",
        "started_at", "start", "submitted_at", "submit_time", "created_at", "created_time",
        "request_created_at", "created", "invocation_time", "datetime", "date", "time_iso8601",
        "time_local",
    ),
    "input": (
        "input_tokens", "input_length", "input_len", "input_lens", "prompt_tokens",
        "prompt_length", "prompt_len", "context_tokens", "request_tokens", "num_prompt_tokens",
        "num_input_tokens", "num_prefill_tokens", "prefill_tokens", "prompt_token_count",
        "input_token_count", "input_sequence_length", "isl", "tokens.prompt", "tokens_in",
        "tokens_prompt", "usage.input",
    ),
    "output": (
        "output_tokens", "output_length", "output_len", "output_lens", "completion_tokens",
        "generated_tokens", "response_tokens", "num_generated_tokens", "num_output_tokens",
        "num_completion_tokens", "num_decode_tokens", "decode_tokens", "generation_tokens",
        "output_token_count", "completion_token_count", "output_sequence_length", "osl",
        "response_length", "completion_length", "tokens.completion", "tokens_out",
        "tokens_completion", "usage.output",
    ),
    "model": ("model", "model_name", "model_id", "served_model_name"),
    "session": ("session_id", "conversation_id", "session", "conversation", "thread_id"),
    "delay": ("delay", "think_time"),
    "latency": (),
    "chat": (),
    "parent": (),
}  # fmt: skip

_USAGE = {
    "time": ("start_time", "aggregation_timestamp"),
    "input": ("input_tokens", "n_context_tokens_total"),
    "output": ("output_tokens", "n_generated_tokens_total"),
    "model": ("model", "snapshot_id"),
    "session": (),
}
PLAIN = Format("plain", ("time", "input_tokens", "output_tokens"), time_unit="s")
FORMATS = (
    Format("azure", ("timestamp", "context_tokens", "generated_tokens")),
    Format(
        "burstgpt",
        ("timestamp", "request_tokens", "response_tokens"),
        {"latency": ("elapsed_time",)},
        time_unit="s",
    ),
    Format(
        "bailian",
        ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length"),
        {"chat": ("chat_id",), "parent": ("parent_chat_id",), "session": ()},
        time_unit="s",
    ),
    Format(
        "sglang",
        ("event", "rid", "timestamp"),
        {
            "input": ("out.meta_info.prompt_tokens",),
            "output": ("out.meta_info.completion_tokens",),
            "latency": ("out.meta_info.e2e_latency",),
            "session": (),
        },
        finished=True,
        only=("event", "request.finished"),
    ),
    Format("mooncake", ("timestamp", "input_length", "output_length"), time_unit="ms"),
    Format("dynamo", ("created_time", "input_tokens", "output_tokens"), time_unit="ms"),
    Format("aibrix", ("timestamp_ms", "input_tokens", "output_tokens"), time_unit="ms"),
    Format("aibrix", ("timestamp", "prompt_length", "output_length"), time_unit="ms", turns=False),
    Format(
        "openai-usage",
        ("start_time", "end_time", "num_model_requests", "input_tokens"),
        _USAGE,
        time_unit="s",
        turns=False,
        counted=True,
    ),
    Format(
        "openai-usage",
        ("aggregation_timestamp", "n_requests", "n_context_tokens_total"),
        _USAGE,
        time_unit="s",
        turns=False,
        counted=True,
    ),
    Format("vllm-bench", ("start_times", "input_lens", "output_lens"), time_unit="s"),
    PLAIN,
)
"""The formats by precedence: if several formats match, the first one is used. So a format precedes
the formats whose columns are a part of its own."""
OTHER = Format("columns", ())
"""The format of any table with usual column names, or with names that the user gives."""

GROUPS = ("requests", "turns", "llm_calls", "results")
"""Keys that contain several requests of one row. Turns and calls are those of one session."""
BUCKETS = ("num_model_requests", "n_requests")
"""Columns with the number of requests that a row sums up."""
BUCKET_END = "end_time"
LEGACY_BUCKET_S = 300.0
KNOWN = (
    "an Azure, BurstGPT or AIBrix CSV, a Mooncake, bailian, Dynamo or AIBrix JSONL, a request log "
    "of SGLang or vLLM, an access log of nginx, Envoy or an AWS load balancer, a usage export of "
    "OpenAI, or any CSV, JSON, JSONL or Parquet with columns for time, input_tokens and "
    "output_tokens (--columns names them), plain or .gz"
)


def format_of(columns: set[str]) -> Format:
    """The format whose rows have `columns`. `OTHER` if no format matches.

    columns: names as `column` normalises them.
    """
    return next((one for one in FORMATS if columns.issuperset(one.needs)), OTHER)


def names_of(form: Format, what: str, given: Mapping[str, str]) -> tuple[str, ...]:
    """The possible columns of the field `what`, the most likely first."""
    if what in given:
        return (given[what],)
    return tuple(form.columns.get(what, USUAL[what]))
