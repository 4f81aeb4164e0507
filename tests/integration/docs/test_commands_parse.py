"""Each command in the documentation exists, takes its options, and names files that a reader has.

The real argument parsers judge the commands of blocks. A command in a sentence may leave required
arguments out, so only its subcommand and its options are checked.
"""

from __future__ import annotations

import argparse
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import pytest

from streams.cli.main import COMMANDS, Parser, main
from tests.integration.docs.page_commands import PAGES, ROOT, Block, Command, blocks, commands

OTHER_PROGRAMS = {"buildah", "cat", "curl", "docker", "export", "helm", "kubectl", "mmdebstrap",
                  "pip", "source"}  # fmt: skip
"""Programs of others: only the files that their commands name are checked."""
OTHER_MODULES = {"build"}
"""Modules of others that a page tells the reader to install."""
READERS_FILES = {
    "shoal.yaml", "requests.csv", "monday.csv", "tuesday.csv", "wednesday.csv", "lastweek.csv",
    "market.csv", "bamboo_p2_us-east-1.csv.gz", "m-large_rate_10min.csv.gz", "result.json",
    "demand.yaml", "fleet.yaml", "new.yaml", "prices.yaml",
    "my_scenario.yaml", "/var/lib/shoal/decisions",
}  # fmt: skip
"""Files that the pages ask the reader to bring."""
PLACEHOLDERS = {"FILE": "shoal.yaml", "HOST:PORT": "127.0.0.1:9092", "DIR": ".", "$port": "1"}
OUTPUT_OPTIONS = {"--out", "--report", "--json", "--pareto", "--record", "--summary", "--secure"}

_FILE = re.compile(r"[\w.-]+\.(?:ya?ml|json|csv|gz|html|key|py|sh|lock|tar)")
_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:shoal|make|python -m) [^`]+)`")
_NAMED_BLOCK = re.compile(r"# ([\w.-]+\.ya?ml)\n")

ids = [str(page.relative_to(ROOT)) for page in PAGES]


class _Parsed(Exception):
    """Raised in place of the command's work. parser: the parser that was asked."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__()
        self.parser = parser


def _parse(command: Sequence[str]) -> None:
    """Raise `_Parsed` if the program's own parser accepts the arguments, else SystemExit."""
    kinds = (argparse.ArgumentParser, Parser)
    real = {kind: kind.parse_args for kind in kinds}

    def stop(self: argparse.ArgumentParser, args: Sequence[str] | None = None) -> None:
        real[kinds[isinstance(self, Parser)]](self, args)
        raise _Parsed(self)

    with ExitStack() as patches:
        for kind in kinds:
            patches.enter_context(patch.object(kind, "parse_args", stop))
        _start(command)


@cache
def _parser(*program: str) -> argparse.ArgumentParser:
    """The parser of a program."""

    def stop(self: argparse.ArgumentParser, args: object = None) -> None:
        raise _Parsed(self)

    with (
        patch.object(argparse.ArgumentParser, "parse_args", stop),
        patch.object(Parser, "parse_args", stop),
    ):
        try:
            _start(program)
        except _Parsed as parsed:
            return parsed.parser
    raise AssertionError(f"{program} has no argument parser")


def _start(command: Sequence[str]) -> None:
    if command[0] == "shoal":
        main(command[1:])
        return
    with patch.object(sys, "argv", [command[0], *command[1:]]):
        if command[0].endswith(".py"):
            runpy.run_path(str(ROOT / command[0]), run_name="__main__")
        else:
            runpy.run_module(command[0], run_name="__main__", alter_sys=False)


def _program(words: Sequence[str]) -> list[str] | None:
    """The words of a Python program: `shoal`, module or script first. None for other programs."""
    first, *rest = (PLACEHOLDERS.get(word, word).split("|")[0] for word in words)
    first = first.removeprefix(".venv/bin/")
    rest = [word.replace("experiments.NAME", "experiments.coral_models") for word in rest]
    if first == "python":
        assert rest[0] == "-m" or rest[0].endswith(".py"), words
        return rest[1:] if rest[0] == "-m" else rest
    if first == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert rest[0] in targets, f"make has no target {rest[0]}"
        options = [word.removeprefix("ARGS=") for word in rest[1:]]
        return ["shoal", "up", *shlex.split(" ".join(options))] if rest[0] == "run" else None
    return [first, *rest] if first == "shoal" or first.endswith(".py") else None


def _is_familiar(words: Sequence[str]) -> bool:
    """Whether the program belongs to the repository or is a known program of others."""
    return (
        words[0].split("=")[0] in OTHER_PROGRAMS
        or words[0] == "image=$(buildah"
        or ((ROOT / words[0]).is_file() or words[0] == "bash" or words[0].startswith("build/"))
    )


def check(command: Command) -> None:
    """Fail if the command does not exist or refuses its arguments."""
    program = _program(command.words)
    if program is None:
        assert command.words[0] == "make" or _is_familiar(command.words), command
        return
    with pytest.raises(_Parsed):
        _parse(program)


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_each_command_of_a_block_is_accepted(page: Path) -> None:
    for command in commands(page):
        check(command)


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")
@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_each_command_in_a_sentence_exists_with_its_options(page: Path) -> None:
    for text in _INLINE.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        words = shlex.split(re.sub(r"[\[\]]|\.\.\.", " ", text).replace(" | ", " "))
        program = _program(words)
        if program and not set(program[1:2]) & {"COMMAND", "--version"}:
            unknown = list(_unknown(program))
            assert unknown == [], f"{text}: {unknown}"


def _unknown(program: Sequence[str]) -> Iterator[str]:
    """The subcommands and options that the program does not have."""
    is_shoal = program[0] == "shoal"
    if is_shoal and program[1].split("|")[0] not in COMMANDS:
        yield program[1]
        return
    if not is_shoal and len(program) == 1:
        if program[0] not in OTHER_MODULES and find_spec(program[0]) is None:
            yield program[0]
        return
    parser = _parser(*program[: 2 if is_shoal else 1])
    for word in program[1:]:
        name = word.split("|")[0].split("=")[0]
        nested = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
        if nested and not name.startswith("-"):
            if name in nested[0].choices:
                parser = nested[0].choices[name]
            else:
                yield name
        elif name.startswith("--") and name not in parser._option_string_actions:
            yield name


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_each_file_that_a_command_names_exists_or_was_made_before(page: Path) -> None:
    made = {name for block in blocks(page) for name in _NAMED_BLOCK.findall(block.text)}
    for command in commands(page):
        made |= set(_outputs(command))
        for word in command.words[1:]:
            for name in _files(word):
                exists = (ROOT / name).exists() or name in READERS_FILES
                assert exists or any(name.startswith(one) for one in made), (command, name)


def _outputs(command: Command) -> Iterator[str]:
    words = shlex.split(" ".join(command.words).replace("ARGS=", " "))
    yield from filter(None, (command.output_file,))
    yield from (b for a, b in pairwise(words) if a in OUTPUT_OPTIONS)
    if words[0].startswith(("deploy/prometheus", "buildah", "mmdebstrap")):
        yield words[-1]
    if "init" in words:
        yield "shoal.yaml"


def _files(word: str) -> Iterator[str]:
    """Names of files in a word. Addresses, images, model names and labels are none."""
    if "://" in word or word.startswith("{"):
        return
    for part in word.removeprefix("ARGS=").split():
        name = part.split("=")[-1].partition("#")[0]  # without the clients of a record
        folder = name.split("/")[0]
        in_folder = "/" in name and ((ROOT / folder).is_dir() or folder in ("build", "~"))
        if in_folder or _FILE.fullmatch(name):
            yield name


def test_each_block_that_starts_with_a_command_is_marked() -> None:
    unmarked = [
        block.place
        for page in PAGES
        for block in blocks(page)
        if block.holds_commands and block.language not in ("sh", "console")
    ]
    assert unmarked == []


def _shell_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.language == "sh"]


def test_each_block_is_valid_shell() -> None:
    for block in _shell_blocks():
        text = re.sub(r"\[[^\]]*\|[^\]]*\]", "", block.text)
        done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
        assert done.returncode == 0, f"{block.place}: {done.stderr}"


@pytest.mark.parametrize(
    "text",
    [
        "shoal plan --confg shoal.yaml",
        "shoal paln",
        "shoal explain",
        "make rnu",
        "make run ARGS='--scenario nowhere --fro 3'",
        "python -m loadtests.burst --brokr 127.0.0.1:9092",
        "sohal status",
    ],
)
def test_a_wrong_command_is_found(text: str) -> None:
    with pytest.raises((SystemExit, AssertionError, pytest.fail.Exception)):
        check(Command("page:1", tuple(shlex.split(text))))
