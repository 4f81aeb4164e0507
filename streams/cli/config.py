"""`shoal config`: check a shoal.yaml, print its JSON Schema, or write a first one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import orjson

from autoscaler.domain.validation import InvalidValue
from streams.cli.json_output import show_json
from streams.cli.kubernetes import regions_of_cluster
from streams.cli.vllm_models import served_models
from streams.files import config_draft
from streams.files.config_draft import Draft, DraftModel
from streams.files.output_files import refuse_unwritable
from streams.files.prometheus_section import url as server_url
from streams.files.shoal_yaml import Config, load_config
from streams.files.user_errors import UserError
from streams.plain_text import several

T = TypeVar("T")

_DEFAULT_LIMITS = "2s 60ms"
_DEFAULT_WORKLOAD = "1x1024+256"


def add_parser(subparsers: Any) -> None:
    """Add `config` to the command line."""
    parser = subparsers.add_parser(
        "config",
        help="check a shoal.yaml, print its JSON Schema, or write a first one",
        description="Checks a shoal.yaml, prints its JSON Schema, or writes a first one.",
    )
    commands = parser.add_subparsers(dest="config_command", metavar="COMMAND", required=True)
    check = commands.add_parser("check", help="read files and report the first fault of each")
    check.add_argument("files", nargs="+", type=Path, metavar="FILE")
    check.add_argument("--json", action="store_true", help="print JSON")
    check.set_defaults(run=_check)
    schema = commands.add_parser("schema", help="print the JSON Schema, for editors")
    schema.set_defaults(run=_schema)
    init = commands.add_parser(
        "init",
        help="write a first shoal.yaml",
        description="Asks for everything that no option gives. With --vllm, running servers name "
        "the "
        "models. With --from-cluster, the nodes of a Kubernetes cluster name the pools.",
    )
    init.add_argument("--out", type=Path, default=Path("shoal.yaml"), metavar="FILE",
                      help="must not exist yet (default %(default)s)")  # fmt: skip
    init.add_argument("--models", metavar="NAME=SOURCE,...", help="Hugging Face names")
    init.add_argument("--vllm", action="append", default=[], metavar="URL",
                      help="a running server whose models to declare; may be repeated")  # fmt: skip
    init.add_argument("--prometheus", default="", metavar="URL",
                      help="with --vllm: the Prometheus that scrapes these servers; their demand "
                      "and number are read there")  # fmt: skip
    init.add_argument("--slo", metavar="TTFT,TPOT", help=f"such as {_DEFAULT_LIMITS}")
    init.add_argument("--gpus", metavar="GPU:NODES@PRICE,...", help=config_draft.POOL_FORM)
    init.add_argument(
        "--from-cluster",
        action="store_true",
        help="pools from the GPU nodes of a Kubernetes cluster, in mode observe",
    )
    init.add_argument(
        "--kubeconfig", default="", metavar="FILE", help="with --from-cluster; default: as kubectl"
    )
    init.add_argument(
        "--context", default="", metavar="NAME", help="with --from-cluster; default: the current"
    )
    init.add_argument("--workload", metavar="RxI+O", help=config_draft.WORKLOAD_FORM)
    init.set_defaults(run=_init)


def _check(args: argparse.Namespace) -> int:
    """Check files. Exit code 0: every file can be used; 2: a file has a fault."""
    results = []
    for path in args.files:
        try:
            results.append({"file": str(path), "ok": True, **_counts(_usable(path))})
        except (UserError, InvalidValue) as error:
            results.append({"file": str(path), "ok": False, "error": str(error)})
    if args.json:
        show_json(results)
    else:
        for result in results:
            print(_line(result) if result["ok"] else result["error"])
    return 0 if all(result["ok"] for result in results) else 2


def _usable(path: Path) -> Config:
    """The file at `path`, read and checked. UserError: it cannot be read, or a model fits on no
    declared GPU.
    """
    # Planning imports a compiler, which would delay --help.
    from streams.files.memory_check import refuse_misfits

    config = load_config(path)
    refuse_misfits(config)
    return config


def _counts(config: Config) -> dict[str, Any]:
    cluster = config.cluster
    return {
        "mode": str(config.mode),
        "models": len(cluster.services),
        "pools": len({(pool.region, pool.name) for pool in cluster.pools}),
        "regions": len({pool.region for pool in cluster.pools}),
    }


def _line(result: dict[str, Any]) -> str:
    counted = ", ".join(several(result[what], what[:-1]) for what in ("models", "pools", "regions"))
    return f"{result['file']}: ok ({counted}, mode {result['mode']})"


def _schema(args: argparse.Namespace) -> int:
    from streams.files.config_schema import json_schema

    sys.stdout.write(orjson.dumps(json_schema(), option=orjson.OPT_INDENT_2).decode() + "\n")
    return 0


def _init(args: argparse.Namespace) -> int:
    """Write a first file. Exit code 0: the file is written and can be used."""
    path: Path = args.out
    if path.exists():
        raise UserError(f"{path}: exists; name another file with --out")
    refuse_unwritable(path)
    if args.from_cluster and args.gpus:
        raise InvalidValue("--gpus", args.gpus, "no value with --from-cluster")
    if args.prometheus and (not args.vllm or args.from_cluster):
        raise InvalidValue(
            "--prometheus", args.prometheus, "a value only with --vllm, and not with --from-cluster"
        )
    prometheus = server_url(args.prometheus) if args.prometheus else ""
    regions = regions_of_cluster(args.kubeconfig, args.context) if args.from_cluster else ""
    served = config_draft.merge_servers([served_models(url) for url in args.vllm])
    models = served or _answer(
        "--models",
        "Models (Hugging Face names, or NAME=SOURCE, with commas)",
        args.models,
        "",
        _models,
    )
    ttft, tpot = _answer(
        "--slo", "Limits of TTFT and TPOT", args.slo, _DEFAULT_LIMITS, config_draft.parse_limits
    )
    pools: tuple[config_draft.DraftPool, ...] = ()
    if not regions:
        pools = _answer("--gpus", f"GPUs ({config_draft.POOL_FORM})", args.gpus, "", _pools)
    rate, prompt, answer = _answer(
        "--workload",
        f"Requests of each model ({config_draft.WORKLOAD_FORM})",
        args.workload,
        _DEFAULT_WORKLOAD,
        config_draft.parse_workload,
    )
    draft = Draft(
        models, pools, ttft, tpot, rate, prompt, answer, regions=regions, prometheus=prometheus
    )
    path.write_text(config_draft.as_yaml(draft), encoding="utf-8")
    try:
        config = _usable(path)
    except UserError as error:
        raise UserError(f"{error}; {path} is written: correct it there") from None
    print(_line({"file": str(path), **_counts(config)}))
    print(f"next: shoal plan --config {path}")
    return 0


def _answer(
    option: str, question: str, given: str | None, default: str, parse: Callable[[str], T]
) -> T:
    """The value of an option, or else of an answer on the terminal. UserError: there is neither."""
    if given is not None:
        return parse(given)
    if not sys.stdin.isatty():
        if default:
            return parse(default)
        raise UserError(f"{option} is missing, and there is no terminal to ask on: {question}")
    while True:
        shown = f" [{default}]" if default else ""
        try:
            text = input(f"{question}{shown}: ").strip() or default
        except EOFError:
            raise UserError("no answer; nothing is written") from None
        try:
            return parse(text)
        except InvalidValue as error:
            print(f"{error.value!r} is not allowed; allowed: {error.allowed}")


def _models(text: str) -> tuple[DraftModel, ...]:
    return _each(text, config_draft.parse_model)


def _pools(text: str) -> tuple[config_draft.DraftPool, ...]:
    return _each(text, config_draft.parse_pool)


def _each(text: str, parse: Callable[[str], T]) -> tuple[T, ...]:
    parts: Sequence[str] = [part for part in text.split(",") if part.strip()]
    if not parts:
        raise InvalidValue("", text, "at least one, separated by commas")
    return tuple(parse(part) for part in parts)
