"""Commands and processes print only printable text, whatever its source."""

from __future__ import annotations

import io
import json
import logging
import sys
from pathlib import Path

import pytest
from rich.table import Table

from streams.cli import main
from streams.cli.json_output import show_json
from streams.html_text import escaped
from streams.terminal import guarded_output
from streams.terminal_console import SafeConsole
from topics.edge.logs import JsonLines, PrintableFormatter

HOSTILE = "a\x1b[2Jb\x9b2Jc\u202ed\x07"
CLEAN = "a?[2Jb?2Jc?d?"


def test_control_characters_are_replaced_in_printed_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with guarded_output():
        print(HOSTILE)
        sys.stderr.write(HOSTILE + "\n")
    shown = capsys.readouterr()
    assert shown.out == shown.err == CLEAN + "\n"


def test_tables_have_printable_text_and_keep_their_styles() -> None:
    table = Table(HOSTILE)
    table.add_row(HOSTILE)
    out = io.StringIO()
    SafeConsole(file=out, force_terminal=True, width=60).print(table, f"[bold]{HOSTILE}[/]")
    text = out.getvalue()
    assert text.count("a?[2Jb?2J") == 2 and "\x1b[1m" in text
    assert "\x1b[2J" not in text and "\x9b" not in text and "\u202e" not in text


def test_a_console_keeps_its_own_control_sequences(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with guarded_output():
        SafeConsole(force_terminal=True, width=60).print("[bold]x[/]")
    assert capsys.readouterr().out == "\x1b[1mx\x1b[0m\n"


@pytest.mark.parametrize("command", ["plan", "diff", "backtest", "status"])
def test_file_names_and_addresses_in_errors_are_printable(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    option = "--url" if command == "status" else "--config"
    words = [command, option, str(tmp_path / HOSTILE)]
    if command == "backtest":
        words += ["--trace", str(tmp_path / HOSTILE)]
    assert main.main(words) == 2
    shown = capsys.readouterr()
    assert "?[2Jb" in shown.err
    assert all(line.isprintable() for line in (shown.out + shown.err).splitlines())


def test_keys_and_values_of_a_file_in_errors_are_printable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "shoal.yaml"
    path.write_text('"a\\e[2J\\u202E": 1\nmode: "\\e[2J"\n')
    assert main.main(["plan", "--config", str(path)]) == 2
    assert all(line.isprintable() for line in capsys.readouterr().err.splitlines())


def test_json_on_a_terminal_is_printable_and_means_the_same(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    show_json({"why": HOSTILE})
    sys.stdout.flush()
    shown = capfdbinary.readouterr().out.decode()
    assert json.loads(shown) == {"why": HOSTILE}
    assert all(line.isprintable() for line in shown.splitlines())


@pytest.mark.parametrize(
    "formatter",
    [
        PrintableFormatter("%(levelname)s %(message)s"),
        JsonLines(),
    ],
)
def test_a_message_is_one_printable_line(formatter: logging.Formatter) -> None:
    """A line feed in a message cannot forge a log line."""
    text = f"{HOSTILE}\n2026-01-01 ERROR all is lost"
    record = logging.LogRecord("a", logging.INFO, "f", 1, "%s", (text,), None)
    assert formatter.format(record).isprintable()
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        record.exc_info = sys.exc_info()
    lines = formatter.format(record).splitlines()
    assert all(line.isprintable() for line in lines)
    assert CLEAN in lines[-1]


def test_pages_contain_only_text() -> None:
    assert escaped("<b>" + HOSTILE) == "&lt;b&gt;" + CLEAN
