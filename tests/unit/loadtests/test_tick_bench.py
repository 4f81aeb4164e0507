"""The tick bench: impossible sizes are refused."""

from __future__ import annotations

import pytest

from loadtests.tick_bench import main


@pytest.mark.parametrize("options", [["--nodes", "199"], ["--regions", "0"]])
def test_fewer_nodes_than_pools_are_refused_in_one_line(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--models", "100", *options])
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"{options[0]} {options[1]}" in said and "at least 1 region, and " in said
