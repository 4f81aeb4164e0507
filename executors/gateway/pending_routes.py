"""Count requests for declared models before those models have routes.

Plans depend on arrivals, so without these counts a model without routes would never get capacity.
And if waiting requests were counted only when routes arrive, they would look like a burst.
"""

from __future__ import annotations

from collections.abc import Mapping

from executors.gateway.model_meter import Ending, ModelMeter, Outcome
from executors.gateway.openai_format import ApiCall


class PendingArrival:
    """An arrival that was counted before its model has routes. After `hand_over`, the caller counts
    the request's end; otherwise `close` counts it as `ending`."""

    def __init__(self, meter: ModelMeter, call: ApiCall) -> None:
        self.meter = meter
        self.ending = Ending.REFUSED
        self._lengths = meter.record_arrival(call.prompt_tokens_estimate, call.max_output_tokens)
        self._handed_over = False

    def hand_over(self) -> tuple[float, float]:
        """The request's input and expected output tokens. From now on the caller counts the end of
        the request."""
        self._handed_over = True
        return self._lengths

    def close(self) -> None:
        """Count the end of the request unless `hand_over` was called."""
        if not self._handed_over:
            self._handed_over = True
            self.meter.record_end(Outcome(self.ending), 0, 0.0, 0.0)


def pending_arrival(
    call: ApiCall, declared: Mapping[str, str], meters: dict[str, ModelMeter]
) -> PendingArrival | None:
    """Count the arrival of `call`. Returns None if its model is not declared, because names that
    clients invent are not reported. declared: model by name and alias."""
    model = declared.get(call.model)
    return (
        PendingArrival(meters.setdefault(model, ModelMeter()), call) if model is not None else None
    )


def count_once(
    meter: ModelMeter, call: ApiCall, pending: PendingArrival | None
) -> tuple[float, float]:
    """(input tokens, expected output tokens) of `call`. Counts its arrival unless `pending` has
    counted it."""
    if pending is not None and pending.meter is meter:
        return pending.hand_over()
    return meter.record_arrival(call.prompt_tokens_estimate, call.max_output_tokens)


def declared_names(options: list[str]) -> dict[str, str]:
    """Model by name and alias, from options MODEL or MODEL=ALIAS. An alias is ignored if several
    models share it or if a model has this name."""
    pairs = [option.partition("=")[::2] for option in options]
    models = {model: model for model, _ in pairs}
    others = [other for _, other in pairs]
    return models | {
        other: model
        for model, other in pairs
        if other and other not in models and others.count(other) == 1
    }
