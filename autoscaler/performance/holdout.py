"""Estimate points with profiles that were not fitted to them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from autoscaler.performance.benchmark_points import MeasuredPoint, PointKind
from autoscaler.performance.calibration import calibrate
from autoscaler.performance.closed_loop import estimate_point
from autoscaler.performance.estimate_errors import EstimatedPoint
from autoscaler.performance.profile import Profile, architecture_key

Points = Sequence[MeasuredPoint]


def estimate_all(points: Points, profile: Profile) -> list[EstimatedPoint]:
    """Every point with its estimate by `profile`."""
    return [(point, estimate_point(point, profile)) for point in points]


def leave_one_out(
    points: Points, others: Points, *, whole_model: bool, report: Callable[[int, int], None]
) -> list[EstimatedPoint]:
    """Estimate each (model, system) of `points` by a profile that is fitted to all other points.

    The other points are `points` and `others` without any point of that architecture (under any
    name and quantisation) on that GPU; with `whole_model`, without that architecture on any GPU.
    report(done, groups) is called before each fit.
    """
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, point in enumerate(points):
        groups[_key(point, whole_model)].append(index)
    everything = [*points, *others]
    found: list[EstimatedPoint | None] = [None] * len(points)
    for done, (key, own) in enumerate(groups.items()):
        report(done, len(groups))
        profile = calibrate(p for p in everything if _key(p, whole_model) != key)
        for index in own:
            found[index] = (points[index], estimate_point(points[index], profile))
    return [pair for pair in found if pair is not None]


def estimate_held_out_half(
    points: Points, others: Points, *, configurations: bool
) -> list[EstimatedPoint]:
    """Estimate every second point by a profile that is fitted to the remaining `points` and to
    `others`.

    With `configurations`, all repetitions of a configuration (lengths, load, GPUs) are in one half,
    so that the fitted half has no measurement of an estimated point.
    """
    if configurations:
        seen: dict[tuple[object, ...], dict[tuple[object, ...], int]] = defaultdict(dict)
        sides = []
        for point in points:
            order = seen[(point.model, point.system, point.tp)]
            sides.append(order.setdefault(_configuration(point), len(order)) % 2)
    else:
        sides = [index % 2 for index in range(len(points))]
    fitted = [point for point, side in zip(points, sides, strict=True) if side == 0]
    profile = calibrate([*fitted, *others])
    return estimate_all([p for p, side in zip(points, sides, strict=True) if side == 1], profile)


def _key(point: MeasuredPoint, whole_model: bool) -> tuple[object, ...]:
    model = architecture_key(point.spec)
    return model if whole_model else (*model, point.gpu.name)


def _configuration(point: MeasuredPoint) -> tuple[object, ...]:
    load = (point.input_tokens, point.output_tokens, point.load, point.decode_load)
    measured = "step" if point.kind is PointKind.STEPS and point.ttft_ms is None else "pass"
    return (point.model, point.system, point.engine, point.tp, point.decode_tp, load, measured)
