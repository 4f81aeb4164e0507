"""Read a service that routes over several models by request score, as declared in `shoal.yaml`.

   auto:
     models: [mini, chat]                 # easiest requests first
     quality: {file: scores.csv, at_least: 90}
     req_per_s: 20
     score:                               # sources of a request's score
       header: X-Difficulty
       rules: [{code: true, score: 0.8}, {longer_than: 2000, score: 0.7}]
       http: {url: "http://127.0.0.1:9000/score", timeout: 200ms}
     unscored: chat
     fallback: true

Each row of scores.csv is a sampled request. The column `score` holds the router's score, which
rises with difficulty. Each model has a column with the quality of its answer to the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from autoscaler.domain.cluster import Service
from autoscaler.domain.quality_route import STEPS, QualityRoute
from autoscaler.domain.validation import InvalidValue
from autoscaler.serving.prompt_language import LANGUAGES
from streams.files import model_keys as common
from streams.files import units
from streams.files.csv_rows import numbered_rows
from streams.files.keys import Group, Key
from streams.files.score_file import number
from streams.files.units import Parser
from streams.files.user_errors import UserError
from streams.files.yaml_tree import ConfigError, Section
from topics.scoring import MOST_EDGES, PromptRule, ScoreSource

HEADER = "X-Shoal-Score"
"""Default name of the client's header that holds the score."""

_RULE_KEYS = ("score", "longer_than", "code", "languages")


def _rules(value: object) -> tuple[PromptRule, ...]:
    allowed = "a list such as [{code: true, score: 0.8}, {longer_than: 2000, score: 0.7}]"
    if not isinstance(value, list) or not value or not all(isinstance(v, Mapping) for v in value):
        raise InvalidValue("", value, allowed)
    return tuple(_rule(one) for one in value)


def _rule(one: Mapping[str, object]) -> PromptRule:
    for key in one:
        if key not in _RULE_KEYS:
            raise InvalidValue("", key, f"a rule of {', '.join(_RULE_KEYS)}")
    if "score" not in one:
        raise InvalidValue("", dict(one), "a rule with its score")
    languages = units.texts(one.get("languages", []), "[python]")
    for language in languages:
        units.word(*LANGUAGES)(language)
    return PromptRule(
        units.number(-1e9, 1e9)(one["score"]),
        units.count(0, 10**9)(one.get("longer_than", 0)),
        units.flag(one.get("code", False)),
        languages,
    )


_RULES_SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "score": {"type": "number"},
            "longer_than": {"type": "integer", "minimum": 0},
            "code": {"type": "boolean"},
            "languages": {"type": "array", "items": {"enum": sorted(LANGUAGES)}},
        },
        "required": ["score"],
        "additionalProperties": False,
    },
}
MODELS = Key(
    "models",
    units.list_of(units.text, "[small, large]"),
    "Two or more declared models. The first gets the easiest requests.",
)
AT_LEAST = Key(
    "at_least", units.number(-1e12, 1e12), "Least mean quality of the answers, as in `file`."
)
STEPS_KEY = Key(
    "steps",
    units.count(1, MOST_EDGES),
    "Number of thresholds between two models.",
    str(STEPS),
    advanced=True,
)
FILE = Key("file", units.text, "CSV file with scores of sampled requests, relative to this file.")
QUALITY = Group("Quality that the answers must have.", (FILE, AT_LEAST, STEPS_KEY))
REQ_PER_S = Key("req_per_s", units.number(1e-9, 1e9), "Planned demand in requests/s.")
UNSCORED = Key(
    "unscored", units.text, "Model for requests without a score.", otherwise="the last of `models`"
)
FALLBACK = Key(
    "fallback",
    units.flag,
    "Whether another of `models` answers if the chosen one cannot.",
    "false",
)
HEADER_KEY = Key("header", units.text, "Request header that holds the score.", otherwise="none")
RULES = Key(
    "rules",
    Parser(_rules, "list of rules", _RULES_SCHEMA),
    "Scores by the length, code or languages of the prompt. The first rule that fits holds.",
    otherwise="none",
)
SCORE_URL = Key("url", units.text, "HTTP service that scores a request.")
TIMEOUT = Key(
    "timeout",
    units.duration_between("1ms", "60s"),
    "Longest time to wait for a score.",
    "200ms",
)
SCORE_HTTP = Group("A scoring service.", (SCORE_URL, TIMEOUT))
SCORE = Group("Where the score of a request comes from.", (HEADER_KEY, RULES), {"http": SCORE_HTTP})
QUALITY_ROUTE = Group(
    "A name that routes over several models by request score.",
    (MODELS, REQ_PER_S, UNSCORED, FALLBACK, common.SHARE),
    {"quality": QUALITY, "score": SCORE},
    required=("quality",),
)


def stands_for_models(section: Section) -> bool:
    """Whether this entry of `models` routes over several other models."""
    return "models" in section and "source" not in section


def read_routes(
    models: Section, services: tuple[Service, ...]
) -> tuple[tuple[QualityRoute, ...], tuple[Service, ...], dict[str, Path]]:
    """Read the services that route over several models.

    Returns three values: these services; `services`, in which their members have no minimum and no
    share of a replayed trace unless declared; and the score file of each routed service, by its
    name.
    """
    routes: list[QualityRoute] = []
    files: dict[str, Path] = {}
    for name, section in models.children():
        if stands_for_models(section):
            if routes:
                raise models.error(name, f"one such service a file; {routes[0].name} is one")
            route, files[name] = read_route(name, section, tuple(s.model for s in services))
            routes.append(route)
            QUALITY_ROUTE.finish(section)
    members = {model for route in routes for model in route.models}
    sections = dict(models.children())
    found = []
    for service in services:
        if service.model in members:
            declared = sections[service.model]
            least = service.min_instances if "min" in declared else 0
            share = service.traffic_share if "share" in declared else 0.0
            service = replace(service, min_instances=least, traffic_share=share)
        found.append(service)
    return tuple(routes), tuple(found), files


def read_route(name: str, section: Section, declared: tuple[str, ...]) -> tuple[QualityRoute, Path]:
    """The route that `section` declares, and its score file. declared: models that may be members.
    Raises ConfigError and UserError."""
    models = MODELS.take(section)
    if len(models) < 2 or len(set(models)) < len(models):
        raise section.error("models", "two or more different models are needed")
    for model in models:
        if model not in declared:
            raise section.error("models", f"{model} is not declared; allowed: {_or(declared)}")
    quality = section.section("quality", required=True)
    assert quality is not None  # noqa: S101  required
    at_least, steps = AT_LEAST.take(quality), STEPS_KEY.take(quality)
    file = Path(section.file).parent / FILE.take(quality)
    QUALITY.finish(quality)
    rate = REQ_PER_S.take(section)
    source = _source(section.section("score"))
    unscored = section.take(UNSCORED.name, units.word(*models), models[-1])
    fallback, share = FALLBACK.take(section), common.SHARE.take(section)
    rows = numbered_rows(file)
    columns = ("score", *models)
    missing = [column for column in columns if column not in rows[0][1]]
    if missing:
        raise UserError(
            f"{file}:1: column {missing[0]!r} is missing; expected {', '.join(columns)}"
        )
    cells = [[number(file, n, row, c) for c in columns] for n, row in rows]
    try:
        route = QualityRoute.from_sample(
            name,
            models,
            [row[0] for row in cells],
            [row[1:] for row in cells],
            at_least,
            rate,
            steps,
            source,
            unscored=unscored,
            fallback=fallback,
            traffic_share=share,
        )
    except InvalidValue as error:
        raise ConfigError(section.file, section.line, section.path, str(error)) from error
    return route, file


def _source(section: Section | None) -> ScoreSource:
    if section is None:
        return ScoreSource(HEADER)
    header = HEADER_KEY.take_or(section, "")
    _refuse(section, HEADER_KEY.name, header=header)
    rules = RULES.take_or(section, ())
    url, limit_s = "", TIMEOUT.default_value()
    http = section.section("http")
    if http is not None:
        url = SCORE_URL.take(http)
        _refuse(http, SCORE_URL.name, url=url)
        limit_s = TIMEOUT.take(http)
        SCORE_HTTP.finish(http)
    SCORE.finish(section)
    if not (header or rules or url):
        raise ConfigError(
            section.file, section.line, section.path, "names no header, no rules and no http"
        )
    return ScoreSource(header, rules, url, limit_s * 1000.0)


def _refuse(section: Section, key: str, header: str = "", url: str = "") -> None:
    """Raise ConfigError at `key` if the header name or the URL cannot provide a score."""
    try:
        ScoreSource(header, (), url)
    except InvalidValue as error:
        said = f"{error.value!r} is not allowed; allowed: {error.allowed}"
        raise section.error(key, said) from None


def _or(names: tuple[str, ...]) -> str:
    return " or ".join(names)
