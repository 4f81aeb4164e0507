"""Requests for declared models that have no routes yet: they count when they come.

Owns the arrival of such a request until it is served or refused. A plan is made of arrivals: if
they only counted once routes came, nothing would ever say that these are wanted, and all that
waited would look like one burst.
"""

from __future__ import annotations

from collections.abc import Mapping

from executors.gateway.model_meter import Ending, Meter, Outcome
from executors.gateway.openai_format import Call


class Arrival:
    """A request counted before its model has routes. `take` hands it over to who serves it; if
    nobody did, `close` ends it as `ending`."""

    def __init__(self, meter: Meter, call: Call) -> None:
        self.meter = meter
        self.ending = Ending.REFUSED
        self._lengths = meter.arrived(call.tokens_guess, call.output_most)
        self._taken = False

    def take(self) -> tuple[float, float]:
        """Its input and expected output tokens; its end is the taker's to count."""
        self._taken = True
        return self._lengths

    def close(self) -> None:
        """Count its end, unless it was taken."""
        if not self._taken:
            self._taken = True
            self.meter.ended(Outcome(self.ending), 0, 0.0, 0.0)


def arrival(call: Call, declared: Mapping[str, str], meters: dict[str, Meter]) -> Arrival | None:
    """The arrival of `call`; None where its model is not declared, so that no name that a client
    made up is reported. declared: models by their own and other names."""
    model = declared.get(call.model)
    return Arrival(meters.setdefault(model, Meter()), call) if model is not None else None


def counted(meter: Meter, call: Call, early: Arrival | None) -> tuple[float, float]:
    """The input and expected output tokens of `call`, which counts once: now or as `early`."""
    if early is not None and early.meter is meter:
        return early.take()
    return meter.arrived(call.tokens_guess, call.output_most)


def declared_names(options: list[str]) -> dict[str, str]:
    """Models by name, of MODEL or MODEL=OTHER_NAME each. Other names that several models share, or
    that are a model's own, name nobody."""
    pairs = [option.partition("=")[::2] for option in options]
    models = {model: model for model, _ in pairs}
    others = [other for _, other in pairs]
    return models | {
        other: model
        for model, other in pairs
        if other and other not in models and others.count(other) == 1
    }
