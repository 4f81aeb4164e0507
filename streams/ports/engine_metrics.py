"""Names of the metrics of inference engines and routers, in Prometheus.

Each name is a regular expression without its prefix. Sources: the metrics pages and collectors of
vLLM, SGLang (`srt/metrics/collector.py`), TensorRT-LLM (`trtllm-serve`, `metrics/collector.py`),
Dynamo (`prometheus_names.rs`, frontend) and the endpoint picker of llm-d.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """Metrics of one engine. prefix: before each name. finished: counters of finished requests, the
    first one that a server has counts. running, waiting: gauges of requests in a server; "" = none.
    model: label with the name of the model. at_arrival: whether `finished` counts requests when
    they arrive, so that gauges add nothing. kinds: labels of `finished` that split one server's
    requests by kind. prompt, answer: histograms of tokens per request. ttft, tpot, token, whole:
    histograms of latencies in s, see `latency_histograms`.
    """

    prefix: str
    finished: tuple[str, ...]
    running: str
    waiting: str = ""
    model: str = "model_name"
    at_arrival: bool = False
    kinds: tuple[str, ...] = ("finished_reason",)
    prompt: str = ""
    answer: str = ""
    ttft: str = ""
    tpot: str = ""
    token: str = ""
    whole: str = ""


VLLM = EngineMetrics(
    "(ray_)?vllm[:_]",
    ("request_success_total", "request_success"),
    "num_requests_running",
    "num_requests_waiting",
    prompt="request_prompt_tokens",
    answer="request_generation_tokens",
    ttft="time_to_first_token_seconds",
    tpot="request_time_per_output_token_seconds",
    token="(inter_token_latency|time_per_output_token)_seconds",  # noqa: S106  no password
    whole="e2e_request_latency_seconds",
)
ENGINES = {
    "vllm": VLLM,
    "sglang": EngineMetrics(
        "sglang[:_]",
        ("num_requests_total", "num_requests"),
        "num_running_reqs",
        "num_queue_reqs",
        kinds=("is_streaming", "finished_reason", "priority"),
        prompt="prompt_tokens_histogram",
        answer="generation_tokens_histogram",
        ttft="time_to_first_token_seconds",
        token="(inter_token_latency|time_per_output_token)_seconds",  # noqa: S106
        whole="e2e_request_latency_seconds",
    ),
    "tensorrt-llm": EngineMetrics(
        "trtllm_",
        ("request_success_total", "request_success"),
        "(num_requests_running|num_active_requests)",
        "(num_requests_waiting|server_queue_length)",
        ttft="time_to_first_token_seconds",
        tpot="time_per_output_token_seconds",
        whole="e2e_request_latency_seconds",
    ),
    "dynamo": EngineMetrics(
        "dynamo_frontend_",
        ("requests_total", "requests"),
        "inflight_requests",
        model="model",
        kinds=("endpoint", "exported_endpoint", "request_type", "status", "error_type"),
        prompt="input_sequence_tokens",
        answer="output_sequence_tokens",
        ttft="time_to_first_token_seconds",
        token="inter_token_latency_seconds",  # noqa: S106
        whole="request_duration_seconds",
    ),
    "llm-d": EngineMetrics(
        "(inference_(objective|model)|llm_d_inference_scheduler)_",
        ("request_total", "requests_total"),
        "running_requests",
        at_arrival=True,
        kinds=("target_model_name", "priority", "objective_name", "fairness_id"),
        prompt="input_tokens",
        answer="output_tokens",
    ),
}
"""Engines by the value of `demand`."""
