"""The contract of an engine, for simulated engines and, with `make test-vllm`, for a real vLLM.

The contract is the behaviour of vLLM 0.32 on a CPU with NIXL; the simulated engine must match it.
"""

from __future__ import annotations

import asyncio
import json

import pytest

from executors.engines.engine_protocol import Contact
from executors.engines.http_api import HttpApi
from executors.engines.metrics_text import parse_load, samples
from tests.contract.engines.harness import REAL, prompt

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "a b"}]
ASKED = {"do_remote_decode": True, "do_remote_prefill": False, "remote_host": None}


async def test_connections_are_refused_until_the_engine_is_ready(engines) -> None:
    """Once the engine is ready, /health answers 200 with an empty body."""
    engine = await engines("main")
    assert engine.launched.refused
    async with engine.client.get(engine.url + "/health") as answer:
        assert (answer.status, await answer.read()) == (200, b"")
    async with engine.client.get(engine.url + "/v1/models") as answer:
        assert [card["id"] for card in (await answer.json())["data"]] == ["tiny"]


async def test_a_simulated_engine_can_be_distinguished_from_a_real_one(engines) -> None:
    """Clients can see the difference."""
    engine = await engines("main")
    async with engine.client.get(engine.url + "/version") as answer:
        version = (await answer.json())["version"]
        assert (version == "simulated") is not bool(REAL)
        assert ("simulated" in answer.headers["Server"]) is not bool(REAL)


async def test_answers_whole_and_streamed(engines) -> None:
    """A stream has chunks, a finish reason in the last one, an optional usage chunk, and [DONE]."""
    engine = await engines("main")
    status, whole = await engine.generate(5, prompt=prompt(3))
    assert status == 200
    usage = {key: whole["usage"][key] for key in sorted(whole["usage"]) if key.endswith("_tokens")}
    assert usage == {"completion_tokens": 5, "prompt_tokens": 3, "total_tokens": 8}
    assert whole["choices"][0]["finish_reason"] == "length"
    events = await engine.stream(
        prompt=prompt(3), max_tokens=7, stream_options={"include_usage": True}
    )
    assert events[-1] == "[DONE]"
    *chunks, usage = [json.loads(event) for event in events[:-1]]
    assert 1 <= len(chunks) <= 7
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["length"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 7
    events = await engine.stream(prompt=prompt(3), max_tokens=2)
    assert all("usage" not in json.loads(event) for event in events[:-1])


async def test_chats_whole_and_streamed(engines) -> None:
    """The first chunk names the role. Chunks have running usage if the request asks for it."""
    engine = await engines("main")
    body = {"messages": HELLO, "max_tokens": 4, "ignore_eos": True}
    status, whole = await engine.post(CHAT, **body)
    assert (status, whole["object"]) == (200, "chat.completion")
    assert whole["choices"][0]["message"]["role"] == "assistant"
    assert whole["usage"]["completion_tokens"] == 4
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = await engine.stream(CHAT, **body, stream_options=options)
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 4)


async def test_several_answers_and_several_prompts(engines) -> None:
    """n > 1, arrays of texts and of token ids, and beam search give one choice each, in order."""
    engine = await engines("main")
    for choices, body in (
        (2, {"prompt": "a", "n": 2}),
        (2, {"prompt": ["a", "b"]}),
        (2, {"prompt": [[5, 6], [7]]}),
        (4, {"prompt": ["a", "b"], "n": 2}),
        (2, {"prompt": "a", "n": 2, "use_beam_search": True}),
    ):
        status, whole = await engine.generate(2, **body)
        assert status == 200, whole
        assert [choice["index"] for choice in whole["choices"]] == list(range(choices))
        if "use_beam_search" not in body:
            assert whole["usage"]["completion_tokens"] == 2 * choices
    events = await engine.stream(prompt=["a", "b"], n=2, max_tokens=3)
    chunks = [json.loads(event) for event in events[:-1]]
    ended = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"]]
    assert sorted(ended) == [0, 1, 2, 3]


REFUSED = [
    {"temperature": -1}, {"temperature": 3}, {"temperature": "hot"},
    {"top_p": 0}, {"top_p": 1.5}, {"top_k": -2}, {"top_k": 1.5}, {"min_p": 2},
    {"n": 0}, {"n": "two"}, {"n": 1.5},
    {"max_tokens": 0}, {"max_tokens": "many"}, {"max_tokens": 1.5}, {"max_tokens": 10**12},
    {"min_tokens": -1}, {"min_tokens": 50},
    {"presence_penalty": 3}, {"frequency_penalty": -3}, {"repetition_penalty": 0},
    {"logprobs": 100}, {"logprobs": "x"}, {"prompt_logprobs": -2},
    {"stop": [1]}, {"stop": ""}, {"stop": {"a": 1}}, {"seed": "x"}, {"seed": 2**70},
    {"logit_bias": {"a": 1}}, {"logit_bias": [1]}, {"stream": 2}, {"ignore_eos": "perhaps"},
    {"stream_options": {"include_usage": True}}, {"prompt": {"a": 1}}, {"prompt": []},
    {"prompt": ""}, {"prompt": 5}, {"prompt": [[]]}, {"prompt": [-1]}, {"prompt": ["a", 5]},
    {"suffix": "x"}, {"model": 5}, {"user": 5}, {"priority": "x"}, {"truncate_prompt_tokens": -5},
    {"stop_token_ids": 5}, {"bad_words": [1]}, {"allowed_token_ids": []},
    {"response_format": {"type": "nope"}}, {"kv_transfer_params": 5}, {"vllm_xargs": 5},
]  # fmt: skip
REFUSED_CHATS = [
    {"messages": []}, {"messages": "x"}, {"messages": [{}]}, {"messages": [5]},
    {"messages": [{"role": "user", "content": 5}]}, {"messages": [{"content": "a"}]},
    {"top_logprobs": 5}, {"logprobs": "x"}, {"tools": 5}, {"tools": []}, {"tool_choice": "auto"},
    {"tools": [{"type": "function", "function": {"name": "f"}}]},
    {"max_completion_tokens": 0}, {"temperature": -1},
]  # fmt: skip


async def test_bad_parameters_are_refused(engines) -> None:
    """Each gets 400 in OpenAI's format; an unknown model gets 404. The engine
    continues to serve.
    """
    engine = await engines("main")
    cases = [("/v1/completions", {"prompt": "a", "max_tokens": 2, **bad}, bad) for bad in REFUSED]
    cases += [(CHAT, {"messages": HELLO, "max_tokens": 2, **bad}, bad) for bad in REFUSED_CHATS]
    taken = []
    for path, body, bad in cases:
        async with engine.client.post(engine.url + path, json={"model": "tiny", **body}) as answer:
            error = (await answer.json()).get("error", {}) if answer.status != 200 else {}
        if (answer.status, error.get("code")) != (400, 400) or not error["message"]:
            taken.append((path, bad, answer.status))
    assert taken == []
    status, body = await engine.post(prompt="a", model="other")
    assert (status, body["error"]["type"]) == (404, "NotFoundError")
    assert (await engine.generate(1))[0] == 200


async def test_values_of_other_types_are_accepted_like_in_vllm(engines) -> None:
    """These are words for truth values, numbers as text, and unknown fields."""
    engine = await engines("main")
    for body in (
        {"max_tokens": "2"}, {"temperature": "0.5"}, {"ignore_eos": "yes"}, {"unknown_thing": 1},
        {"model": None}, {"top_k": 0}, {"stop": "zz"}, {"best_of": 3},
    ):  # fmt: skip
        status, whole = await engine.post(**{"prompt": "a", "max_tokens": 2, **body})
        assert status == 200, (body, whole)


async def test_invalid_bodies_and_paths_are_refused(engines) -> None:
    """Invalid JSON and deeply nested JSON get 400, unknown paths 404, wrong methods 405."""
    engine = await engines("main")
    deep = b'{"model":"tiny","prompt":' + b"[" * 2000 + b"]" * 2000 + b"}"
    for raw in (b'{"model":', b"[]", b"5", b"", deep, b'{"prompt":"\xff"}'):
        headers = {"Content-Type": "application/json"}
        url = engine.url + "/v1/completions"
        async with engine.client.post(url, data=raw, headers=headers) as answer:
            assert answer.status == 400, raw[:40]
    for method, path, status in (
        ("GET", "/nope", 404), ("GET", "/v1/completions", 405), ("POST", "/v1/embeddings", 404),
    ):  # fmt: skip
        async with engine.client.request(method, engine.url + path) as answer:
            assert (answer.status, "detail" in await answer.json()) == (status, True)


async def test_an_event_can_have_several_tokens_under_load(engines) -> None:
    """Clients must therefore count tokens by usage, never by events."""
    engine = await engines("main")
    body = {"prompt": "a", "max_tokens": 200, "stream_options": {"include_usage": True}}
    streams = await asyncio.gather(*(engine.stream(**body) for _ in range(12)))
    assert [json.loads(events[-2])["usage"]["completion_tokens"] for events in streams] == [
        200
    ] * 12
    events = sum(len(events) - 2 for events in streams)
    # A real engine merges the more tokens, the slower its API server is compared with its core.
    assert events <= 12 * 200 if REAL else events < 12 * 200


async def test_metrics_have_the_names_of_vllm(engines) -> None:
    """They are the names that Shoal and its rules read. Counters and histograms add up."""
    engine = await engines("main")
    before = await engine.metrics()
    await asyncio.gather(*(engine.generate(50, prompt=prompt(30)) for _ in range(3)))
    after = await engine.metrics()

    def grown(name: str) -> float:
        return sum(samples(after, name)) - sum(samples(before, name))

    assert grown("vllm:generation_tokens_total") == 150
    assert grown("vllm:prompt_tokens_total") == 90
    assert grown("vllm:time_to_first_token_seconds_count") == 3
    assert grown("vllm:e2e_request_latency_seconds_count") == 3
    assert grown("vllm:request_time_per_output_token_seconds_count") == 3
    assert grown("vllm:inter_token_latency_seconds_count") > 0
    assert grown("vllm:request_success_total") == 3
    assert parse_load(after).finished - parse_load(before).finished == 3
    assert parse_load(after).in_flight == parse_load(after).held_kv == 0
    for name in (
        "vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
        'vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"}',
        "vllm:num_preemptions_total", "vllm:nixl_num_kv_expired_reqs_total",
        "vllm:nixl_num_failed_transfers_total", "vllm:external_prefix_cache_hits_total",
        "vllm:external_prefix_cache_queries_total", 'vllm:prompt_tokens_by_source_total{engine="0"',
        'finished_reason="abort"', 'sleep_state="awake"',
    ):  # fmt: skip
        assert name in after, name


async def test_slots_limit_the_running_requests(engines) -> None:
    """Four requests run and the others wait. The metrics show the KV use of the
    running requests.
    """
    engine = await engines("main")
    jobs = [
        asyncio.create_task(engine.generate(engine.long // 4, prompt=prompt(50))) for _ in range(6)
    ]
    await engine.until_running(4)
    text = await engine.metrics()
    assert samples(text, "vllm:num_requests_running") == [4.0]
    assert samples(text, "vllm:num_requests_waiting") == [2.0]
    assert sum(samples(text, "vllm:num_requests_waiting_by_reason")) == 2.0
    assert 0.0 < samples(text, "vllm:kv_cache_usage_perc")[0] < 1.0
    assert parse_load(text).in_flight == 6
    assert {status for status, _ in await asyncio.gather(*jobs)} == {200}


async def test_a_client_that_leaves_frees_its_slot(engines) -> None:
    """This holds for every kind of request. vLLM does not count such an abort."""
    engine = await engines("main")
    aborted = 'finished_reason="abort"'
    before = [line for line in (await engine.metrics()).splitlines() if aborted in line]
    for body in ({"n": 2}, {}, {"stream": True}):
        job = asyncio.create_task(engine.generate(engine.long, **body))
        await engine.until_running(2 if "n" in body else 1)
        job.cancel()
        await engine.until("vllm:num_requests_running", 0, 0)
    after = [line for line in (await engine.metrics()).splitlines() if aborted in line]
    assert [line.split()[-1] for line in after] == [line.split()[-1] for line in before]


async def test_prefill_hands_its_kv_to_decode(engines) -> None:
    """Transfer parameters go unchanged from prefill to decode. The KV is kept
    until it is fetched.
    """
    prefill, decode = await engines("peer"), await engines("main")
    text = prompt(240)
    before = await decode.metrics()
    status, first = await prefill.generate(1, prompt=text, kv_transfer_params=ASKED)
    params = first["kv_transfer_params"]
    assert (status, params["remote_num_tokens"]) == (200, 240)
    assert parse_load(await prefill.metrics()).held_kv == 1
    status, body = await decode.generate(20, prompt=text, kv_transfer_params=params)
    assert (status, body["usage"]["completion_tokens"]) == (200, 20)
    await prefill.until("vllm:kv_cache_usage_perc", 0, 0)
    after = await decode.metrics()
    for name, grown in (
        ("vllm:external_prefix_cache_hits_total", 240),
        ('vllm:prompt_tokens_by_source_total{engine="0",model_name="tiny",source="local_c', 0),
    ):
        found = [line for line in after.splitlines() if line.startswith(name)]
        known = [line for line in before.splitlines() if line.startswith(name)]
        total = sum(float(line.split()[-1]) for line in found)
        assert total - sum(float(line.split()[-1]) for line in known) == grown, name


async def test_roles_may_change_with_each_request(engines) -> None:
    """Either engine can serve as prefill, as decode or alone. A role switch is only a change of
    routes.
    """
    one, other = await engines("peer"), await engines("main")
    for turn in range(6):
        prefill, decode = (one, other) if turn % 2 else (other, one)
        text = prompt(100)
        _, first = await prefill.generate(1, prompt=text, kv_transfer_params=ASKED)
        params = first["kv_transfer_params"]
        jobs = [decode.generate(5, prompt=text, kv_transfer_params=params), prefill.generate(5)]
        assert [status for status, _ in await asyncio.gather(*jobs)] == [200, 200]
        await prefill.until("vllm:kv_cache_usage_perc", 0, 0)


async def test_a_hand_over_to_itself_is_refused(engines) -> None:
    """The request gets 500, and no other request is affected. Without the parameters the prompt is
    served.
    """
    engine, text = await engines("peer"), prompt(100)
    _, first = await engine.generate(1, prompt=text, kv_transfer_params=ASKED)
    params = first["kv_transfer_params"]
    assert (await engine.generate(5, prompt=text, kv_transfer_params=params))[0] == 500
    assert (await engine.generate(5, prompt=text))[0] == 200
    await engine.until("vllm:kv_cache_usage_perc", 0, 0)  # when the lease ends


async def test_unfetched_kv_is_freed_when_its_lease_ends(engines) -> None:
    """No engine fetched the KV. It is freed and counted."""
    engine = await engines("peer")
    before = await engine.gauge("vllm:nixl_num_kv_expired_reqs_total")
    await engine.generate(1, prompt=prompt(100), kv_transfer_params=ASKED)
    assert parse_load(await engine.metrics()).held_kv == 1
    await engine.until("vllm:nixl_num_kv_expired_reqs_total", before + 1)
    await engine.until("vllm:kv_cache_usage_perc", 0, 0)


@pytest.mark.parametrize(
    ("mode", "part", "kept"), [("wait", 4, "length"), ("keep", 2, "length"), ("abort", 1, "abort")]
)
async def test_a_paused_engine_holds_new_requests(engines, mode: str, part: int, kept: str) -> None:
    """New requests hang and are not counted. Depending on the mode, running requests finish, wait
    or end.
    """
    engine = await engines("main")
    job = asyncio.create_task(engine.generate(engine.long // part))
    await engine.until_running(1)
    assert await engine.dev("POST", "/pause", mode=mode) == {"status": "paused"}
    assert await engine.dev("GET", "/is_paused") == {"is_paused": True}
    late = asyncio.create_task(engine.generate(2))
    await asyncio.sleep(0.3)
    assert not late.done()
    assert job.done() is (mode != "keep")
    assert await engine.gauge("vllm:num_requests_waiting") == 0
    assert await engine.health() == 200
    assert (await engine.dev("POST", "/resume"))["status"] == "resumed"
    status, body = await job
    assert (status, body["choices"][0]["finish_reason"]) == (200, kept)
    assert (await late)[0] == 200


async def test_a_sleeping_engine_serves_again_after_wake_up(engines) -> None:
    """While it sleeps, it serves no request, and its metrics show the sleep."""
    engine = await engines("main")
    awake = 'vllm:engine_sleep_state{engine="0",model_name="tiny",sleep_state="awake"}'
    await engine.dev("POST", "/sleep", level="1")
    assert await engine.dev("GET", "/is_sleeping") == {"is_sleeping": True}
    job = asyncio.create_task(engine.generate(2))
    await asyncio.sleep(0.3)
    assert not job.done()
    assert await engine.gauge(awake) == 0
    await engine.dev("POST", "/wake_up")
    assert (await job)[0] == 200
    assert await engine.dev("GET", "/is_sleeping") == {"is_sleeping": False}
    assert await engine.gauge(awake) == 1


async def test_a_standby_sleeps_and_wakes_on_request(engines) -> None:
    """After two sleep requests the engine sleeps. After wake-up it generates. Without dev mode the
    sleep request fails.
    """
    api, engine = HttpApi(), await engines("main")
    contact = Contact(engine.client, engine.endpoint, "tiny")
    assert await api.sleep(contact)
    assert await api.sleep(contact)
    assert await api.wake(contact)
    assert await api.alive(contact)
    peer = await engines("peer")
    other = Contact(peer.client, peer.endpoint, "tiny")
    assert not await api.sleep(other)
    assert await api.alive(other)


async def test_without_dev_mode_there_is_no_pause(engines) -> None:
    """The engine answers 404, so no client can pause it over HTTP."""
    engine = await engines("peer")
    for path in ("/pause", "/resume", "/sleep", "/wake_up"):
        async with engine.client.post(engine.url + path) as answer:
            assert answer.status == 404


async def test_a_hanging_core_shows_only_by_missing_tokens(engines) -> None:
    """/health and /metrics answer 200. A request hangs until the core resumes."""
    engine = await engines("main")
    engine.wedge()
    try:
        job = asyncio.create_task(engine.generate(2))
        await asyncio.sleep(0.5)
        assert not job.done()
        assert await engine.health() == 200
        assert "vllm:num_requests_running" in await engine.metrics()
    finally:
        engine.unwedge()
    assert (await job)[0] == 200
