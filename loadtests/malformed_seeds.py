"""Valid files that `loadtests.malformed_files` damages."""

from __future__ import annotations

import json
from typing import Any

_VLLM: dict[str, Any] = {
    "date": "20261120-101530", "backend": "vllm", "model_id": "meta-llama/Llama-3.1-8B-Instruct",
    "num_prompts": 100, "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 8,
    "duration": 50.0, "completed": 100, "failed": 0, "total_input_tokens": 102400,
    "total_output_tokens": 12800, "request_throughput": 4.0, "mean_ttft_ms": 150.0,
    "mean_tpot_ms": 12.0, "ramp_up_strategy": None,
}  # fmt: skip
_GUIDELLM: dict[str, Any] = {
    "args": {"model": "meta-llama/Llama-3.1-8B-Instruct"},
    "benchmarks": [
        {
            "config": {"strategy": {"type_": "concurrent", "streams": 8}},
            "start_time": 1795169730.0,
            "duration": 60.0,
            "metrics": {
                "request_totals": {"successful": 100, "errored": 1, "incomplete": 0, "total": 101},
                "prompt_token_count": {"successful": {"mean": 1024.0}},
                "output_token_count": {"successful": {"mean": 128.0}},
                "request_concurrency": {"successful": {"mean": 7.9}},
                "requests_per_second": {"successful": {"mean": 4.1}},
                "time_to_first_token_ms": {"successful": {"mean": 150.0}},
                "inter_token_latency_ms": {"successful": {"mean": 12.0}},
            },
        }
    ],
}
_AIPERF: dict[str, Any] = {
    "request_throughput": {"unit": "requests/sec", "avg": 4.0},
    "request_count": {"unit": "requests", "avg": 100.0},
    "error_request_count": {"unit": "requests", "avg": 0.0},
    "time_to_first_token": {"unit": "ms", "avg": 150.0},
    "inter_token_latency": {"unit": "ms", "avg": 12.0},
    "input_sequence_length": {"unit": "tokens", "avg": 1024.0},
    "output_sequence_length": {"unit": "tokens", "avg": 128.0},
    "input_config": {
        "endpoint": {"model_names": ["meta-llama/Llama-3.1-8B-Instruct"]},
        "loadgen": {"concurrency": 8, "request_rate": None},
    },
    "start_time": "2026-11-20T10:15:30.000000",
}
PRINTED = """\
============ Serving Benchmark Result ============
Successful requests:                     640
Failed requests:                         0
Maximum request concurrency:             64
Benchmark duration (s):                  128.0
Total input tokens:                      655360
Total generated tokens:                  163840
Request throughput (req/s):              5.00
---------------Time to First Token----------------
Mean TTFT (ms):                          600.0
-----Time per Output Token (excl. 1st token)------
Mean TPOT (ms):                          47.0
==================================================
"""
LLMD_1 = """\
version: "0.1"
scenario:
  model: {name: Qwen/Qwen3-8B}
  host: {accelerator: [{model: NVIDIA-L40S, count: 1, parallelism: {tp: 1}}], type: [replica]}
  load: {name: guidellm}
metrics:
  time: {duration: 128.0}
  requests:
    total: 640
    failures: 0
    input_length: {units: count, mean: 1024}
    output_length: {units: count, mean: 256}
  latency:
    time_to_first_token: {units: s, mean: 0.6}
    time_per_output_token: {units: s/token, mean: 0.047}
  throughput: {requests_per_sec: 5.0}
"""
LLMD_2 = """\
version: "0.2.1"
run: {uid: a, time: {start: "2026-05-20T14:30:12.123+00:00", duration: PT128S}}
scenario:
  stack:
  - standardized:
      kind: inference_engine
      role: replica
      replicas: 1
      model: {name: Qwen/Qwen3-8B}
      accelerator: {model: L40S, count: 1, parallelism: {tp: 1, dp: 1}}
  load: {standardized: {concurrency: 64}}
results:
  request_performance:
    aggregate:
      requests:
        total: 640
        failures: 0
        input_length: {units: count, mean: 1024.0}
        output_length: {units: count, mean: 256.0}
      latency:
        time_to_first_token: {units: ms, mean: 600.0}
        time_per_output_token: {units: ms/token, mean: 47.0}
      throughput: {request_rate: {units: queries/s, mean: 5.0}}
"""
INFERENCE_PERF: dict[str, Any] = {
    "load_summary": {"count": 640, "schedule_delay": {"mean": 0.01}},
    "successes": {
        "count": 640,
        "latency": {
            "request_latency": {"mean": 12.6}, "time_to_first_token": {"mean": 0.6},
            "time_per_output_token": {"mean": 0.047},
        },
        "throughput": {"requests_per_sec": 5.0, "output_tokens_per_sec": 1280.0},
        "prompt_len": {"mean": 1024}, "output_len": {"mean": 256},
    },
    "failures": {"count": 0},
}  # fmt: skip
INFERENCEX: dict[str, Any] = {
    "hw": "h100-cw", "tp": 1, "ep": 1, "dp_attention": "false", "conc": 64, "precision": "bf16",
    "model": "Qwen/Qwen3-8B", "framework": "vllm", "isl": 1024, "osl": 256,
    "tput_per_gpu": 6400.0, "mean_ttft": 0.6, "mean_tpot": 0.047, "mean_intvty": 21.3,
}  # fmt: skip
_GUIDELLM_CSV = (
    "Run Info,Run Info,Benchmark,Timings,Request Counts,Request Counts,Time to First Token,"
    "Inter Token Latency,Server Throughput,Token Metrics,Token Metrics\n"
    "Run ID,Backend,Strategy,Start Time,Successful,Errored,Successful ms,Successful ms,"
    "Successful Concurrency,Successful Input Tokens,Successful Output Tokens\n"
    ",,,,,,Mean,Mean,Mean,Mean,Mean\n"
    '"r","{""model"": ""m""}",concurrent,2026-11-20 10:15:30,100,0,150.0,12.0,7.9,1024.0,128.0\n'
)


def _lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


USAGE = {
    "object": "page",
    "data": [
        {
            "object": "bucket", "start_time": 1767607200, "end_time": 1767607260,
            "results": [
                {"object": "organization.usage.completions.result", "input_tokens": 1001,
                 "output_tokens": 500, "num_model_requests": 5, "model": "gpt-4o"},
            ],
        },
        {"object": "bucket", "start_time": 1767607260, "end_time": 1767607320, "results": []},
    ],
}  # fmt: skip
NGINX = (
    '10.0.0.9 - - [20/Nov/2026:10:15:30 +0000] "POST /v1/chat/completions HTTP/1.1" 200 2326 "-" '
    '"curl/8"\n'
    '10.0.0.9 - - [20/Nov/2026:10:15:31 +0000] "GET /health HTTP/1.1" 200 2 "-" "probe"\n'
    '10.0.0.9 - - [20/Nov/2026:10:15:32 +0000] "POST /v1/completions HTTP/1.1" 503 12 "-" "a"\n'
    '10.0.0.9 - bob [20/Nov/2026:12:15:33 +0200] "POST /v1/messages HTTP/2.0" 200 12 "-" "a"\n'
)
ENVOY = (
    '[2026-11-20T10:15:30.000Z] "POST /v1/chat/completions HTTP/1.1" 200 - 512 2048 1500 1499 "-" '
    '"curl" "a" "h" "10.0.0.2:8000"\n'
    '[2026-11-20T10:15:31.000Z] "GET /metrics HTTP/1.1" 200 - 0 9 1 1 "-" "p" "b" "h" "-"\n'
    '[2026-11-20T10:15:31.500Z] "POST /v1/completions HTTP/1.1" 0 DC 5 0 9 - "-" "p" "b" "h" "-"\n'
    '[2026-11-20T10:15:33.000Z] "POST /v1/embeddings HTTP/2" 200 - 5 7 9 8 "-" "p" "b" "h" "-"\n'
)
_FAILED_CALLS = _lines(
    {"ts": 1.0, "prompt_tokens": 100, "completion_tokens": 20, "status": 200},
    {"ts": 2.0, "prompt_tokens": None, "completion_tokens": None, "status": 500},
    {"ts": 3.0, "prompt_tokens": 0, "completion_tokens": 0},
)
TRACES = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"
    "2023-11-16 18:15:50.9951690,396,109\n2024-05-10 00:00:00.009930+00:00,2162,5\n",
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5.0,101,2.5,ChatGPT,472,18,490,Conversation log\n45.0,101,4.0,ChatGPT,1087,230,1317,API log\n",
    "timestamp_ms,input_tokens,output_tokens\n6011,178,8\n6917,258,40\n",
    'time,model,input_tokens,output_tokens,user\n0.5,chat,472.0,18.0,"a,b"\n2,mini,7,1,c\n',
    _lines(
        {"timestamp": 0, "input_length": 40160, "output_length": 6, "hash_ids": [0, 1]},
        {"timestamp": 3052.5, "input_length": 7, "output_length": 3},
    ),
    _lines(
        {"session_id": "s", "timestamp": 0, "input_length": 500, "output_length": 20},
        {"session_id": "s", "delay": 4000, "input_length": 900, "output_length": 30},
    ),
    _lines(
        {"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 521,
         "output_length": 132, "type": "text", "turn": 1, "hash_ids": [1089]},
        {"chat_id": 160, "parent_chat_id": 159, "timestamp": 63.2, "input_length": 700,
         "output_length": 12, "type": "text", "turn": 2, "hash_ids": [1089]},
    ),
    _lines(
        {"timestamp": 0, "requests": [{"prompt_length": 120, "output_length": 40}]},
        {"timestamp": 1000, "requests": [{"prompt_length": 20, "output_length": 16},
                                         {"prompt_length": 220, "output_length": 60}]},
    ),
    _lines(
        {"timestamp": "2026-01-05T10:00:04", "event": "request.finished", "rid": "a", "obj": {},
         "out": {"meta_info": {"prompt_tokens": 12, "completion_tokens": 30, "e2e_latency": 3.0}}},
        {"timestamp": "2026-01-05T10:00:05", "event": "request.received", "rid": "b", "obj": {}},
    ),
    "[2026-01-05 10:00:04] Finish: obj=GenerateReqInput(rid='a'), out={'meta_info': {'id': 'a', "
    "'prompt_tokens': 12, 'completion_tokens': 30, 'e2e_latency': 3.0}}\n",
    "INFO 12-31 23:59:59 [logger.py:39] Received request cmpl-a: prompt: 'x', params: "
    "SamplingParams(n=1), prompt_token_ids: [1, 2, 3], prompt_embeds shape: None.\n"
    "INFO 01-01 00:00:01 [logger.py:80] Generated response cmpl-a: output: 'y', "
    "output_token_ids: [4, 5], finish_reason: stop\n",
    json.dumps({"input_lens": [10, 20], "output_lens": [3, 4], "start_times": [5000.25, 5001.75]}),
    _lines({"metadata": {"request_start_ns": 1767607200000000000}, "metrics": {
        "input_sequence_length": {"value": 550}, "output_sequence_length": {"value": 20}}}),
    json.dumps({"session_id": "s", "turns": [{"llm_calls": [
        {"timestamp": "2026-06-01T00:00:00Z", "model": "A",
         "tokens": {"prompt": 100, "completion": 10}}]}]}, indent=1),
    "ts;prompt_tokens;completion_tokens\n1767607200123;472.0;18.0\n1767607201123;1;2\n",
    "timestamp,input_tokens,output_tokens\n0,12,13\n1.5,40,60\n",
    json.dumps(USAGE),
    NGINX,
    ENVOY,
    _FAILED_CALLS,
)  # fmt: skip
ACCESS_LOGS = (NGINX, ENVOY)
"""Traces without tokens, which need --columns."""
RESULTS = (
    json.dumps(_VLLM),
    json.dumps([{**_VLLM, "run_number": n} for n in range(2)], indent=2),
    _lines(_VLLM, {**_VLLM, "request_rate": 4.0, "max_concurrency": None}),
    "," + ",".join(_VLLM) + "\n0," + ",".join(str(v) for v in _VLLM.values()) + "\n",
    json.dumps(_GUIDELLM),
    _GUIDELLM_CSV,
    json.dumps(_AIPERF),
    "Namespace(model='Qwen/Qwen3-8B', request_rate=inf, max_concurrency=64)\n" + PRINTED,
    LLMD_1,
    LLMD_2,
    json.dumps(INFERENCE_PERF),
    json.dumps([INFERENCEX, INFERENCEX]),
)
_AWS = {
    "AvailabilityZone": "us-east-1a", "InstanceType": "g6.xlarge", "SpotPrice": "0.331200",
    "ProductDescription": "Linux/UNIX", "Timestamp": "2026-11-20T09:01:32+00:00",
}  # fmt: skip
_AZURE = {
    "currencyCode": "USD", "retailPrice": 19.66, "armRegionName": "us-east-1",
    "skuName": "ND96 Spot", "armSkuName": "g6.xlarge", "unitOfMeasure": "1 Hour",
    "effectiveStartDate": "2026-01-01T00:00:00Z", "type": "Consumption", "productName": "VM",
}  # fmt: skip
AWS_PRODUCT: dict[str, Any] = {
    "product": {
        "productFamily": "Compute Instance",
        "attributes": {
            "instanceType": "g6.xlarge", "regionCode": "us-east-1", "operatingSystem": "Linux",
            "tenancy": "Shared", "preInstalledSw": "NA", "capacitystatus": "Used",
            "usagetype": "BoxUsage:g6.xlarge", "marketoption": "OnDemand",
        },
        "sku": "X",
    },
    "terms": {
        "OnDemand": {
            "X.J": {
                "effectiveDate": "2026-11-01T00:00:00Z",
                "priceDimensions": {
                    "X.J.6": {"unit": "Hrs", "pricePerUnit": {"USD": "0.8048000000"}}
                },
            }
        }
    },
}  # fmt: skip
AWS_OFFERS: dict[str, Any] = {
    "offerCode": "AmazonEC2",
    "products": {"X": AWS_PRODUCT["product"]},
    "terms": {"OnDemand": {"X": AWS_PRODUCT["terms"]["OnDemand"]}},
}
AWS_OFFERS_CSV = (
    '"FormatVersion","v1.0"\n"Publication Date","2026-11-20T10:00:00Z"\n"OfferCode","AmazonEC2"\n'
    '"SKU","TermType","EffectiveDate","Unit","PricePerUnit","Currency","Instance Type",'
    '"Region Code","Tenancy","Operating System","Pre Installed S/W","CapacityStatus"\n'
    '"X","OnDemand","2026-11-01","Hrs","0.8048","USD","g6.xlarge","us-east-1","Shared","Linux",'
    '"NA","Used"\n'
    '"X","Reserved","2026-11-01","Hrs","0.5","USD","g6.xlarge","us-east-1","Shared","Linux","NA",'
    '"Used"\n'
)
_SKYPILOT = (
    "InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region,AvailabilityZone\n"
    ",L4,1.0,0.5609,0.2245,us-east-1,us-east-1-a\n"
    "g2-standard-4,,,0.146,0.058,us-east-1,us-east-1-a\n"
    "g6.xlarge,L4,1.0,0.8,0.3,us-east-1,us-east-1-a\n"
)
FEEDS = (
    "us-east-1/l4/spot: 0.33\nus-east-1/l4: 0.8\n",
    '{"us-east-1/l4/spot": "0.3312", "us-east-1/l4/on-demand": 4.915}',
    json.dumps({"SpotPriceHistory": [_AWS, {**_AWS, "SpotPrice": "0.4"}]}),
    json.dumps({"BillingCurrency": "USD", "Items": [_AZURE], "Count": 1}),
    ",".join(_AWS) + "\n" + ",".join(_AWS.values()) + "\n",
    "InstanceType,vCPUs,Price,Region,SpotPrice,AvailabilityZone\n"
    "g6.xlarge,4,0.8,us-east-1,0.3,us-east-1a\n",
    "time,pool,price,nodes\n0,us-east-1/l4/spot,0.33,\n30,us-east-1/l4/spot,0.0,4\n"
    "2026-11-20T09:05:00+00:00,us-east-1/l4/spot,0.40,4\n",
    "0,4\n60,2\n120,0\n",
    json.dumps({"FormatVersion": "aws_v1", "PriceList": [json.dumps(AWS_PRODUCT)]}),
    json.dumps(AWS_OFFERS),
    AWS_OFFERS_CSV,
    _SKYPILOT,
    "region,instance_type,price,currency,unit\nus-east-1,g6.xlarge,0.8,EUR,hour\n",
)
FEED_READERS = (
    ("feed",), ("feed",), ("feed", "supply"), ("feed", "supply"), ("feed", "supply"),
    ("feed", "supply"), ("supply",), ("steps",), ("feed",), ("feed",), ("feed",),
    ("feed", "supply"), ("feed",),
)  # fmt: skip
"""Readers that accept each of FEEDS."""
