"""`shoal plan` for a service that routes between two models, as a user runs it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from streams.cli.explain import route_lines
from streams.cli.main import main
from streams.cli.status import service_line
from streams.files.score_file import sampled_scores
from streams.files.user_errors import UserError

EXAMPLES = Path(__file__).parents[3] / "deploy" / "examples"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    shutil.copy(EXAMPLES / "scores.csv", tmp_path)
    return Path(shutil.copy(EXAMPLES / "quality.yaml", tmp_path / "shoal.yaml"))


def test_the_cheapest_split_with_the_declared_quality_is_planned(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The models' demand follows the split. Cost and quality rise along the front, which the page
    shows.
    """
    page = tmp_path / "front.html"
    options = ["plan", "--config", str(config), "--no-explain"]
    assert main([*options, "--json", "--pareto", str(page)]) == 0
    shown = json.loads(capsys.readouterr().out)
    routing = shown["routing"]
    assert routing["quality"] >= 87.0
    small, large = routing["fractions"]
    assert shown["plan"]["models"]["mini"]["req_per_s"] == pytest.approx(6.0 * small)
    assert shown["plan"]["models"]["chat"]["req_per_s"] == pytest.approx(6.0 * large)
    costs = [row["cost_usd_per_h"] for row in shown["front"]]
    assert costs == sorted(costs)
    assert len(costs) >= 3
    assert routing["cost_usd_per_h"] == min(
        row["cost_usd_per_h"] for row in shown["front"] if row["quality"] >= 87.0
    )
    assert "<svg" in page.read_text()


@pytest.mark.parametrize(
    ("find", "replaced", "said"),
    [
        ("[mini, chat]", "[mini, chet]", "chet is not declared"),
        ("[mini, chat]", "[mini]", "two or more"),
        ("scores.csv, at_least", "none.csv, at_least", "none.csv"),
        ("at_least: 87", "at_least: much", "models.auto.quality.at_least"),
        ("at_least: 87", "at_last: 87", "did you mean at_least?"),
        ("at_least: 87", "at_least: 99", "at most"),
        ("at_least: 87", "at_least: 87, steps: 0", "models.auto.quality.steps"),
        ("req_per_s: 6", "req_per_s: -1", "models.auto.req_per_s"),
        ("unscored: chat", "unscored: chet", "did you mean chat?"),
        ("fallback: true", "fallback: mini", "models.auto.fallback"),
        ("fallback: true", "fall_back: true", "did you mean fallback?"),
        ("fallback: true", "share: -1", "models.auto.share"),
        ("{header: X-Difficulty}", "{}", "names no header, no rules and no http"),
        ("{header: X-Difficulty}", "{header: 'a b'}", "1 to 64 letters"),
        ("{header: X-Difficulty}", "{head: X-Difficulty}", "models.auto.score.head"),
        ("{header: X-Difficulty}", "{http: {url: 'ftp://h/'}}", "http://HOST:PORT/PATH"),
        ("{header: X-Difficulty}", "{http: {timeout: 1s}}", "models.auto.score.http.url"),
        ("{header: X-Difficulty}", "{http: {url: 'http://h/', timeout: 9m}}", "1ms to 60s"),
        ("{header: X-Difficulty}", "{rules: {code: true}}", "models.auto.score.rules"),
        ("{header: X-Difficulty}", "{rules: [{code: true}]}", "a rule with its score"),
        ("{header: X-Difficulty}", "{rules: [{cod: true, score: 1}]}", "longer_than"),
        ("{header: X-Difficulty}", "{rules: [{languages: [xx], score: 1}]}", "'xx'"),
        ("{header: X-Difficulty}", "{rules: [{score: hard}]}", "'hard'"),
        ("{header: X-Difficulty}", "{rules: [{score: 1, longer_than: -1}]}", "-1"),
    ],
)
def test_a_bad_key_is_refused_in_one_line(
    config: Path,
    capsys: pytest.CaptureFixture[str],
    find: str,
    replaced: str,
    said: str,
) -> None:
    """The line names the fault and the allowed values."""
    config.write_text(config.read_text().replace(find, replaced, 1))
    assert main(["plan", "--config", str(config), "--no-explain"]) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert said in err


@pytest.mark.parametrize(
    ("row", "said"), [("0.5,100", "not 3 cells"), ("0.5,nan,100", "mini"), ("x,1,1", "score")]
)
def test_a_bad_score_is_refused_with_file_and_line(
    config: Path, capsys: pytest.CaptureFixture[str], row: str, said: str
) -> None:
    """A damaged row is refused; it is not skipped silently."""
    scores = config.parent / "scores.csv"
    scores.write_text(f"score,mini,chat\n0.1,100,100\n{row}\n")
    assert main(["plan", "--config", str(config)]) == 2
    err = capsys.readouterr().err
    assert f"{scores.name}:3" in err
    assert said in err


def test_status_has_a_line_for_a_service() -> None:
    """The line has planned and present shares, thresholds, quality, and the number of fallbacks."""
    service = {
        "name": "auto", "models": ["mini", "chat"], "req_per_s": 5.94, "thresholds": "0.5",
        "shares": [0.61, 0.39], "unscored": 0.0, "quality": 88.2, "at_least": 87.0, "requests": 700,
        "bound_by": "", "planned_thresholds": "0.5", "planned_shares": [0.6, 0.4],
        "planned_quality": 88.4, "served": 700, "fallbacks": 3,
    }  # fmt: skip
    assert service_line(service) == (
        "auto 5.9 req/s: mini 61.0% (planned 60.0%), chat 39.0% (planned 40.0%); thresholds 0.5; "
        "quality 88.2, planned 88.4, at least 87; 3 of the last 700 fell back"
    )
    moving = service | {"planned_thresholds": "0.6", "fallbacks": 0}
    assert "thresholds 0.5 (soon 0.6)" in service_line(moving)
    assert service_line(service | {"thresholds": ""}) == "auto: no thresholds yet"


def test_explain_shows_the_binding_limit_and_the_thresholds_in_force() -> None:
    """The service routes between two models."""
    now = {
        "name": "auto", "models": ["mini", "chat"], "thresholds": "0.5", "shares": [0.6, 0.4],
        "unscored": 0.05, "quality": 88.2, "at_least": 87.0, "requests": 700,
        "bound_by": "quality >= 87; 86.5 would save 2.00 USD/h", "planned_thresholds": "0.6",
    }  # fmt: skip
    said = {"route": now, "decisions": [], "present": {"req_per_s": 5.5}}
    lines = [" ".join(str(line).split()) for line in route_lines(said)]
    assert "in force thresholds 0.5: mini 60.0%, chat 40.0%" in lines
    assert any(line.startswith("planned thresholds 0.6") for line in lines)
    assert "limited by quality >= 87; 86.5 would save 2.00 USD/h" in lines
    assert "demand 5.5 req/s; 5.0% without a score" in lines


def test_blank_lines_do_not_shift_the_line_number_of_a_bad_score(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = config.with_name("scores.csv")
    scores.write_text("score,mini,chat\n\n0.1,90,91\n\n0.2,90,good\n")
    assert main(["plan", "--config", str(config)]) == 2
    assert f"{scores}:5: chat: 'good' is not a finite number" in capsys.readouterr().err
    with pytest.raises(UserError, match=f"^{scores}:3: score: 'x' is not a finite number"):
        scores.write_text("score,mini,chat\n\nx,90,91\n")
        sampled_scores(scores)
