"""Score splits, for services that route to several models: the score of a request selects the
model. Score splits are part of routes. Gateways compute the scores.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from topics import checks

ALL_REQUESTS = "all"
"""Kind in `Telemetry.sent` under which a service with a score split counts all its requests, by the
model that answers."""
FALLBACK = "fell-back"
"""Kind in `Telemetry.sent` that counts requests answered by another model because the chosen model
had no free capacity."""
MOST_EDGES = 500
_HEADER = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}\Z")
_URL = re.compile(r"http://[A-Za-z0-9._\[\]:-]{1,255}(/[\x21-\x7e]{0,1000})?\Z")


@dataclass(frozen=True, slots=True)
class PromptRule:
    """A condition on the prompt, and the score of requests that meet the condition.

    longer_than: the prompt has more tokens than this, by the gateway's estimate (0: any length).
    code: whether the prompt must contain program text. languages: the prompt must be in one of
    these languages (ISO 639-1; empty: any).
    """

    score: float
    longer_than: int = 0
    code: bool = False
    languages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checks.number("score", self.score, -1e9, 1e9)
        checks.count("longer_than", self.longer_than, 10**9)
        for language in self.languages:
            checks.machine_text("languages", language, 8)


@dataclass(frozen=True, slots=True)
class ScoreSource:
    """The sources of a score, in order of precedence.

    header: name of a header of the client's request ("": none). rules: the first matching rule
    gives the score. url: an HTTP scorer ("": none), which must answer within limit_ms real
    milliseconds. low, high: range of valid scores; scores outside it are ignored.
    """

    header: str = ""
    rules: tuple[PromptRule, ...] = ()
    url: str = ""
    limit_ms: float = 200.0
    low: float = -1e9
    high: float = 1e9

    def __post_init__(self) -> None:
        if self.header and not _HEADER.match(self.header):
            raise checks.InvalidValue("header", self.header, "1 to 64 letters, digits or -")
        if self.url and not _URL.match(self.url):
            raise checks.InvalidValue("url", self.url, "http://HOST:PORT/PATH")
        checks.number("limit_ms", self.limit_ms, 1.0, 60_000.0)
        checks.number("low", self.low, -1e9, 1e9)
        checks.number("high", self.high, self.low, 1e9)


@dataclass(frozen=True, slots=True)
class ScoreSplit:
    """The models of a service, beginning with the model for the lowest scores.

    edges: rising scores that separate the classes; the class of a score is the number of edges at
    or below it (0 to len(edges)), and gateways report requests by class. cuts: rising class
    numbers; model i serves the classes from cuts[i - 1] until before cuts[i]. unscored: the model
    for requests without a score. fallback: whether another model answers while the chosen model has
    no free capacity. shares: planned share of requests per model.
    """

    models: tuple[str, ...]
    edges: tuple[float, ...]
    cuts: tuple[int, ...]
    unscored: str
    fallback: bool = False
    source: ScoreSource = ScoreSource()
    shares: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if len(self.models) < 2 or len(set(self.models)) < len(self.models):
            raise checks.InvalidValue("models", self.models, "two or more different models")
        for model in self.models:
            checks.name("models", model)
        checks.one_of("unscored", self.unscored, self.models)
        if len(self.edges) > MOST_EDGES or list(self.edges) != sorted(set(self.edges)):
            raise checks.InvalidValue("edges", len(self.edges), f"at most {MOST_EDGES}, rising")
        for edge in self.edges:
            checks.number("edges", edge, -1e9, 1e9)
        if len(self.cuts) != len(self.models) - 1 or list(self.cuts) != sorted(self.cuts):
            raise checks.InvalidValue("cuts", self.cuts, "one fewer than models, not falling")
        for cut in self.cuts:
            checks.count("cuts", cut, len(self.edges) + 1)
        for share in self.shares:
            checks.number("shares", share, 0.0, 1.0)
