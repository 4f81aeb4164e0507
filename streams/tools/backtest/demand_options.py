"""The options that decide a backtest's demand, before any file is read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autoscaler.serving.routing_policies import WithinCombo
from streams.files.user_errors import UserError
from streams.tools.replay.servegen import client_selection
from streams.tools.replay.traces import NO_COLUMNS, Given


@dataclass(frozen=True, slots=True)
class Demand:
    """The options of a backtest's demand. traces: FILE or MODEL=FILE; FILE#0,3-5 takes only these
    clients of a ServeGen record. config: None = the bundled configuration. scales: (model, factor)
    of the rate, in addition to rate_scale.

    from_s, to_s: the slice of the trace, to_s = inf for its end. supply: FILE or POOL=FILE. rates:
    exchange rates of its prices, each CURRENCY=USD. fluid: simulate rates, so that no single
    requests are drawn from ServeGen's windows. columns: the user's mapping of trace columns, if
    there is one. inside: which instance of a combo takes a request.
    """

    traces: tuple[str, ...]
    config: Path | None = None
    rate_scale: float = 1.0
    from_s: float = 0.0
    to_s: float = math.inf
    supply: tuple[str, ...] = ()
    fluid: bool = False
    columns: Given = NO_COLUMNS
    scales: tuple[tuple[str, float], ...] = ()
    rates: tuple[str, ...] = ()
    inside: WithinCombo = WithinCombo.OPPORTUNISTIC

    def on(self, traces: Sequence[str]) -> Demand:
        """The same options for other traces; scales of models without a trace are dropped."""
        kept = tuple(s for s in self.scales if any(t.startswith(f"{s[0]}=") for t in traces))
        return replace(self, traces=tuple(traces), scales=kept)

    def sources(self) -> tuple[TraceSource, ...]:
        """The source of each trace. UserError for a scale of a model without a trace."""
        found = []
        for text in self.traces:
            name, equals, rest = text.partition("=")
            plain = not equals or "/" in name or Path(text).exists()
            model, file = ("", text) if plain else (name, rest)
            path, clients = client_selection(file)
            scale = self.rate_scale * math.prod(x for m, x in self.scales if m == model)
            found.append(TraceSource(model, path, clients, scale))
        for model, factor in self.scales:
            if model not in {one.model for one in found}:
                raise UserError(f"--scale {model}={factor:g}: there is no --trace {model}=FILE")
        return tuple(found)


@dataclass(frozen=True, slots=True)
class TraceSource:
    """One trace. model: "" if the trace names models or is split among them. clients: taken from a
    ServeGen record; empty = all. scale: factor of the rate."""

    model: str
    path: Path
    clients: frozenset[str]
    scale: float
