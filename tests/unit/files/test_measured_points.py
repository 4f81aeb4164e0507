"""Files of measured points: content decides the format, and a bad file gives one clear line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from autoscaler.performance.benchmark_points import PointKind
from autoscaler.performance.packaged_profile import default_profile
from streams.cli.main import main
from streams.files.measured_points import read_points
from streams.files.profile_files import read_profile, write_profile
from streams.files.user_errors import UserError

BENCHMARK = (
    "silicon_data_source,backend,model_path,system,precision,mode,isl,osl,gemm_quant_mode,"
    "moe_quant_mode,batch_size,tp_size,attention_dp_size,moe_tp_size,moe_ep_size,"
    "prefill_tp_size,decode_tp_size,decode_num_workers,silicon_ttft_ms,silicon_tpot_ms"
)
DENSE = (
    "silicon_concurrency=16,vllm,meta-llama/Llama-3.1-70B,h200_sxm,fp8,agg,1024,1024,fp8,fp8,"
    "16,2,,,,,,,190,15.65"
)
BATCH = "model,hardware,prompt_size,batch_size,token_size,prompt_time,token_time,tensor_parallel"
GRID = "phase,system,model,tp,batch,isl_or_ctx,latency_ms,fits,gemm_quant,moe_quant,kv_quant"


def _file(folder: Path, *lines: str) -> Path:
    path = folder / "points.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_benchmark_row_becomes_a_point(tmp_path: Path) -> None:
    (point,) = read_points(_file(tmp_path, BENCHMARK, DENSE)).points
    assert point.kind is PointKind.CLOSED_LOOP
    assert (point.gpu.name, point.tp, point.load, point.engine) == ("H200-SXM", 2, 16.0, "vllm")
    assert (point.spec.weight_dtype, point.spec.kv_bytes_per_token) == ("fp8", 327680 / 2)
    assert (point.ttft_ms, point.tpot_ms) == (190.0, 15.65)


def test_batch_rows_and_grid_rows_are_distinguished_by_their_columns(tmp_path: Path) -> None:
    (batch,) = read_points(_file(tmp_path, BATCH, "llama2-70b,a100-80gb,512,4,128,300,60,4")).points
    assert (batch.kind, batch.load, batch.tp) == (PointKind.BATCH, 4.0, 4)
    first, later = read_points(
        _file(
            tmp_path,
            GRID,
            "prefill,l40s,Qwen/Qwen3-8B,1,1,512,40,1,bfloat16,bfloat16,bfloat16",
            "decode,l40s,Qwen/Qwen3-8B,1,8,512,25,1,fp8_block,fp8_block,fp8",
        )
    ).points
    assert (first.ttft_ms, first.tpot_ms, first.typical) == (40.0, None, True)
    assert (later.ttft_ms, later.tpot_ms, later.typical) == (None, 25.0, False)


def test_a_gzipped_file_reads_the_same(tmp_path: Path) -> None:
    plain = _file(tmp_path, BENCHMARK, DENSE)
    packed = tmp_path / "points.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_points(packed) == read_points(plain)


def test_the_load_of_replicated_attention_is_the_sum_over_replicas(tmp_path: Path) -> None:
    row = (
        "silicon_concurrency=64,trtllm,deepseek-ai/DeepSeek-R1,h200_sxm,fp8,agg,1024,1024,fp8,"
        "fp8,8,1,8,1,8,,,,900,40"
    )
    (point,) = read_points(_file(tmp_path, BENCHMARK, row)).points
    assert (point.tp, point.load) == (8, 64.0)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("meta-llama/Llama-3.1-70B", "unknown/Unheard-of-9B", "architecture of unknown/Unheard-of"),
        ("h200_sxm", "abacus", "GPU of system abacus unknown"),
        ("fp8,agg,1024,1024,fp8,fp8", ",agg,1024,1024,,", "precision"),
        ("16,2,,,", "16,16,,,", "more than 8 GPUs"),
        ("16,2,,,", "16,2,32,,", "more than 8 GPUs"),
        ("agg", "disagg", "numbers of workers not given"),
        ("190,15.65", "2,0.4", "faster than the data sheet's peak"),
        ("fp8,agg,1024,1024,fp8,fp8,16,2", "bf16,agg,1024,1024,bf16,bf16,16,1", "do not fit"),
    ],
)
def test_an_incomparable_row_is_skipped_and_counted(
    tmp_path: Path, old: str, new: str, reason: str
) -> None:
    bad = DENSE.replace(old, new, 1)
    if "disagg" in bad:
        bad = bad.replace(",,,,190", ",2,2,,190")
    found = read_points(_file(tmp_path, BENCHMARK, DENSE, bad))
    assert len(found.points) == 1
    assert [n for why, n in found.skipped.items() if reason in why] == [1]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (("",), "empty"),
        ((BENCHMARK,), "no rows"),
        (("a,b", "1,2"), "not a file of measured points"),
        ((BENCHMARK.replace("precision", "bits"), DENSE), "column precision is missing"),
        ((BATCH.replace(",tensor_parallel", ""), "llama2-70b,a,1,1,1,1,1"), "tensor_parallel"),
        ((BENCHMARK, DENSE.replace("190", "nan")), ":2: silicon_ttft_ms: 'nan'"),
        ((BENCHMARK, DENSE.replace("190", "-4")), ":2: silicon_ttft_ms: '-4'"),
        ((BENCHMARK, DENSE.replace("15.65", "")), ":2: silicon_tpot_ms: ''"),
        ((BENCHMARK, DENSE.replace("15.65", "inf")), ":2: silicon_tpot_ms: 'inf'"),
        ((BENCHMARK, DENSE.replace(",16,2,", ",16,2.5,")), ":2: tp_size: '2.5'"),
        ((BENCHMARK, DENSE.replace("agg", "both")), ":2: mode: 'both'"),
        ((BENCHMARK, DENSE + ",7"), ":2: not 20 cells"),
        ((BENCHMARK, DENSE.replace("meta-llama/Llama-3.1-70B", "n/o")), "no usable point"),
    ],
)
def test_a_bad_file_gives_one_clear_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: tuple[str, ...], says: str
) -> None:
    path = _file(tmp_path, *lines)
    assert main(["profile", "evaluate", "--points", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert says in error
    assert str(path) in error


@pytest.mark.parametrize("bad", ["llama2-70b,a100-80gb,512,x,128,300,60,4", "llama2-70b,a100-80gb"])
def test_blank_lines_do_not_shift_the_line_number_of_a_row(bad: str, tmp_path: Path) -> None:
    good = "llama2-70b,a100-80gb,512,4,128,300,60,4"
    path = _file(tmp_path, BATCH, "", good, ",,,,,,,", "", bad, good)
    with pytest.raises(UserError, match=f"^{path}:6: "):
        read_points(path)


def test_a_missing_file_and_broken_gzip_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_points(tmp_path / "nothing.csv")
    broken = tmp_path / "broken.csv.gz"
    broken.write_bytes(gzip.compress(b"a,b\n" * 400)[:-20])
    with pytest.raises(UserError, match="cannot be read"):
        read_points(broken)


def test_evaluate_prints_json_with_errors_as_fractions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _file(tmp_path, BENCHMARK, DENSE, DENSE.replace("190,15.65", "380,31.3"))
    assert main(["profile", "evaluate", "--points", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    (group,) = shown["groups"]
    assert (group["model"], group["system"]) == ("meta-llama/Llama-3.1-70B", "h200_sxm")
    assert (group["points"], shown["total"]["points"], shown["unit"]) == (2, 2, "fraction")
    # Both rows have the same estimate: doubling the measured time halves estimate / measured.
    first = group["tpot_mape"] * 2
    assert 0.3 < first < 1.0
    assert group["tpot_median"] == pytest.approx(group["tpot_mape"])


def test_a_profile_written_by_fit_is_read_by_evaluate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        f"llama2-70b,a100-80gb,{512 * k},{b},128,{100 * k * b},{50 + k + b},4"
        for k in (1, 2, 4)
        for b in (1, 2)
    ]
    points, out = _file(tmp_path, BATCH, *rows), tmp_path / "profile.json"
    assert main(["profile", "fit", "--points", str(points), "--out", str(out)]) == 0
    assert len(read_profile(out).tables) == 1
    capsys.readouterr()
    command = ["profile", "evaluate", "--points", str(points), "--profile", str(out), "--json"]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["total"]["tpot_mape"] < 1e-3


def test_held_out_points_are_not_used_for_the_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second of two systems is ten times as slow. Without its points, its estimates are far too
    fast.
    """
    rows = [
        f"llama2-70b,{gpu},{512 * k},{b},128,{slow * 200 * k * b},{slow * (50 + k + b)},4"
        for gpu, slow in (("a100-80gb", 1), ("h100-80gb", 10))
        for k in (1, 2, 4, 8)
        for b in (1, 2, 4)
    ]
    path = str(_file(tmp_path, BATCH, *rows))
    assert main(["profile", "evaluate", "--points", path, "--leave-one-out", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    errors = {group["system"]: group["tpot_mape"] for group in shown["groups"]}
    assert errors["h100-80gb"] > 0.7
    assert "without the model" in shown["basis"]
    assert main(["profile", "evaluate", "--points", path, "--holdout", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"]["points"] == len(rows) // 2


@pytest.mark.parametrize(
    "options", [["--holdout", "--profile", "x.json"], ["--fit-with", "points.csv"]]
)
def test_options_that_contradict_each_other_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    path = str(_file(tmp_path, BENCHMARK, DENSE))
    assert main(["profile", "evaluate", "--points", path, *options]) == 2
    assert capsys.readouterr().err.startswith("shoal: --")


def test_an_edited_profile_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    write_profile(path, default_profile())
    assert read_profile(path) == default_profile()
    path.write_text(path.read_text().replace('"step_ms": ', '"step_ms": 1', 1))
    with pytest.raises(UserError, match="content_hash"):
        read_profile(path)
