"""Solve a template instance next to a fleet that is running, changing little of it.

Owns the keep and start items of Coral's penalty without penalty rows (keep at p, at most as many as
run, start at p (1 + K)) and the search for the plan that is within the gap as if all were started
anew, with the fewest changes. Knows nothing of waves, drains or files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoscaler.domain.validation import InvalidValue
from autoscaler.optimizer.arrays import Floats, Ints
from autoscaler.optimizer.result import Status
from loadtests.coral.decomposition import Outcome, solve_decomposed
from loadtests.coral.dual import ascend
from loadtests.coral.fewest_stops import fewest_stops
from loadtests.coral.groups import Decomposed, Group
from loadtests.coral.incumbent import Incumbent
from loadtests.coral.instance import TemplateInstance, lower
from loadtests.coral.limits import SearchOptions
from loadtests.coral.placements import (
    Placements,
    account,
    read_back,
    solve_instance,
)

LADDER = (15.0, 9.0, 5.0, 3.0, 1.5)
"""Price of a stop, as a multiple of what the gap allows to cost too much, over all changes."""
FIRST_COLUMNS = 4000
"""Columns of MIPs in the search for the cheapest transition."""
NEXT_COLUMNS = 2500
"""Columns of MIPs for each price of a stop."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A plan against the running fleet.

    `done` carries the cost in USD/h with the penalty K only on what is started, and its proven
    bound. `all_started_usd_per_h` is what the same plan would cost if everything were started anew
    and `all_started_bound_usd_per_h` the bound on any plan then. Instances `started`, `stopped`.
    """

    done: Placements
    all_started_usd_per_h: float
    all_started_bound_usd_per_h: float
    started: int
    stopped: int
    running: int

    @property
    def fraction_replaced(self) -> float:
        """Share of the running instances that do not stay."""
        return self.stopped / max(1, self.running)


def solve_running(
    instance: TemplateInstance,
    running: Ints,
    options: SearchOptions,
    mu_usd_per_h: Floats | None = None,
) -> Transition:
    """Cheapest transition of `running` (n, 4: group, region, template, count) within
    `options.gap`; among those that the search meets, the one with the fewest stops.

    Where demand cannot be met it is the best effort of a fleet started anew.
    """
    problem = lower(instance)
    start = np.zeros(len(problem.capacity)) if mu_usd_per_h is None else mu_usd_per_h.ravel()
    dual = ascend(problem, start, rounds=400)
    cold = 0.0 if dual is None else dual.bound
    near = with_running(instance, problem, running, 0.0)
    mu = _padded(start if dual is None else dual.mu, problem, near)
    first = replace(
        options, gap=0.6 * options.gap, mip_columns=min(options.mip_columns, FIRST_COLUMNS)
    )
    outcome = solve_decomposed(near, first, mu)
    if outcome.plan is None:
        return _transition(instance, running, solve_instance(instance, options, start), cold)
    best = _against(instance, near, running, outcome, options, cold)
    work = outcome.work
    allowed = options.gap * abs(outcome.bound)
    for share in LADDER:
        if options.left_s() < 1.0:
            break
        price = share * allowed / max(1, best.started + best.stopped)
        dear = with_running(instance, problem, running, price)
        given = reprice(dear, outcome.plan)
        inner = replace(options, gap=0.1 * options.gap, rounds=40, mip_columns=NEXT_COLUMNS)
        found = solve_decomposed(dear, inner, outcome.mu, given)
        work += found.work
        if found.plan is None:
            continue
        same = replace(outcome, plan=reprice(near, found.plan))
        other = _against(instance, near, running, same, options, cold)
        if _rank(other, options) < _rank(best, options):
            best = other
            if other.done.gap <= options.gap:
                break  # lower prices only change more
    if options.left_s() >= 1.0:
        # The ladder bids for stability; here all that the gap leaves is spent on it.
        own = outcome.plan.money(near) * (1.0 + 1e-9)
        most = max(own, outcome.bound / max(1e-3, 1.0 - options.gap) * (1.0 - 1e-8), 1e-9)
        tokens = np.zeros(near.money.T.shape, dtype=np.bool_)
        tokens[:, problem.money.shape[0] :] = True
        steady, spent = fewest_stops(near, outcome, tokens.ravel(), most, options)
        work += spent
        if steady is not None:
            same = replace(outcome, plan=steady)
            other = _against(instance, near, running, same, options, cold)
            best = min(best, other, key=lambda found: _rank(found, options))
    # The certificate is that of a fleet started anew: it needs no word on what is running.
    prices = mu.reshape(len(instance.price_usd_per_h), -1)[:, : instance.price_usd_per_h.shape[1]]
    return replace(best, done=replace(best.done, work=work, mu_usd_per_h=prices))


def _rank(found: Transition, options: SearchOptions) -> tuple[float, int, int]:
    """Within the gap first, then few that are stopped, then few that are started.

    What more demand wants must start; what is stopped without need is what disrupts.
    """
    gap = float("inf") if found.done.status is Status.FAILED else found.done.gap
    return max(gap, options.gap), found.stopped, found.started


def _against(
    instance: TemplateInstance,
    near: Decomposed,
    running: Ints,
    outcome: Outcome,
    options: SearchOptions,
    cold: float,
) -> Transition:
    """The checked plan of an outcome, its cost told as that of the transition."""
    done = read_back(instance, near, outcome, options, running=running)
    return _transition(instance, running, done, cold)


def reprice(problem: Decomposed, plan: Incumbent) -> Incumbent:
    """The same plan at the prices of `problem`, which has the same resources."""
    flat = problem.money.T.ravel()
    cost = np.array(
        [
            float(use @ flat) + len(pairs) * float(group.base.max(initial=0.0))
            for use, pairs, group in zip(plan.use, plan.pairs, problem.groups, strict=True)
        ]
    )
    return replace(plan, cost=cost)


def with_running(
    instance: TemplateInstance, problem: Decomposed, running: Ints, price_of_stop: float
) -> Decomposed:
    """The problem with a keep item per running pair and a price on every stop.

    Each running pair is a resource with as many tokens as run; a keep item takes one token, which
    gives back the start penalty and the price of a stop.
    """
    features, places = problem.money.shape
    tokens = len(running)
    wide = features + tokens
    money = np.vstack([problem.money, np.zeros((tokens, places))])
    capacity = np.zeros((places, wide))
    capacity[:, :features] = problem.capacity.reshape(places, features)
    keeps: list[list[tuple[int, int, int]]] = [[] for _ in problem.groups]
    for token, (k, region, template, count) in enumerate(running.tolist()):
        nodes = instance.nodes[k][template].astype(np.float64)
        price = float(nodes @ instance.price_usd_per_h[region])
        # Never below nothing: an item that pays would be taken without end.
        full = price * (1.0 + instance.start_penalty)
        back = min(price * instance.start_penalty + price_of_stop, full)
        money[features + token, region] = -back
        capacity[region, features + token] = count
        keeps[k].append((template, region, features + token))
    groups = tuple(_with_keeps(group, keeps[k]) for k, group in enumerate(problem.groups))
    flat = capacity.ravel()
    return Decomposed(groups, money, flat)


def _with_keeps(group: Group, keeps: list[tuple[int, int, int]]) -> Group:
    """The group with a copy of each kept item that takes its token, allowed in its region only."""
    indptr, feature, amount = [group.indptr], [group.feature], [group.amount]
    item, allowed = [], []
    places = group.allowed.shape[1]
    position = {int(i): n for n, i in enumerate(group.ids)}
    end = int(group.indptr[-1])
    for template, region, token in keeps:
        at = position.get(template)
        if at is None or not group.allowed[at, region]:
            continue  # its nodes are no longer to be had there
        entries = slice(int(group.indptr[at]), int(group.indptr[at + 1]))
        feature += [group.feature[entries], np.array([token], dtype=np.int32)]
        amount += [group.amount[entries], np.ones(1)]
        end += entries.stop - entries.start + 1
        indptr.append(np.array([end], dtype=np.int64))
        item.append(at)
        row = np.zeros((1, places), dtype=np.bool_)
        row[0, region] = True
        allowed.append(row)
    same = np.array(item, dtype=np.int64)
    count = len(group.ids) + len(item)
    return replace(
        group,
        indptr=np.concatenate(indptr),
        feature=np.concatenate(feature),
        amount=np.concatenate(amount),
        base=np.zeros(count),
        throughput=np.concatenate([group.throughput, group.throughput[same]]),
        units=np.concatenate([group.units, group.units[same]]),
        allowed=np.ascontiguousarray(np.vstack([group.allowed, *allowed])),
        ids=np.concatenate([group.ids, group.ids[same]]),
    )


def _padded(mu: Floats, problem: Decomposed, near: Decomposed) -> Floats:
    """Multipliers of the plain problem laid out for the one with tokens."""
    features, places = problem.money.shape
    wide = np.zeros((places, near.money.shape[0]))
    wide[:, :features] = mu.reshape(places, features)
    return wide.ravel()


def _transition(
    instance: TemplateInstance, running: Ints, done: Placements, cold: float
) -> Transition:
    """What starts and stops."""
    before = {(k, r, i): n for k, r, i, n in running.tolist()}
    after = {(k, r, i): n for k, r, i, n in done.rows.tolist()}
    keys = before.keys() | after.keys()
    started = sum(max(0, after.get(key, 0) - before.get(key, 0)) for key in keys)
    stopped = sum(max(0, before.get(key, 0) - after.get(key, 0)) for key in keys)
    return Transition(
        done=done,
        all_started_usd_per_h=account(instance, done.rows)[0],
        all_started_bound_usd_per_h=cold,
        started=started,
        stopped=stopped,
        running=sum(before.values()),
    )


def check_running(instance: TemplateInstance, running: Ints) -> None:
    """Refuse rows that name no group, region or template, or no count, or one pair twice."""
    seen = set()
    for row, (k, region, template, count) in enumerate(running.tolist()):
        if not 0 <= k < len(instance.nodes):
            raise InvalidValue(f"running[{row}].group", k, f"0 to {len(instance.nodes) - 1}")
        for name, value, limit in (
            ("region", region, len(instance.price_usd_per_h)),
            ("template", template, len(instance.nodes[k])),
        ):
            if not 0 <= value < limit:
                raise InvalidValue(f"running[{row}].{name}", value, f"0 to {limit - 1}")
        if count < 1:
            raise InvalidValue(f"running[{row}].count", count, "a whole number from 1")
        if (k, region, template) in seen:
            raise InvalidValue(f"running[{row}]", (k, region, template), "each pair once")
        seen.add((k, region, template))
