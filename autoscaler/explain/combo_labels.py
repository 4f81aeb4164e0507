"""Labels of combos for people: short ones from a combo id alone, or longer ones with GPU names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from autoscaler.domain.cluster import Pool
from autoscaler.domain.combo import Combo, ComboMember
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Phase
from autoscaler.performance.catalog import short_gpu_name
from autoscaler.planning.combo_names import Member, parse_instances

_PHASES = {"prefill": " prefill", "decode": " decode", "aggregated": ""}


def pool_words(pool_id: str, *, market: bool = True) -> str:
    """Label of a pool, e.g. "us-east/l40s (spot)". market: whether to include the market."""
    region, name, of = pool_id.split("/")
    return f"{region}/{name} ({of})" if market else f"{region}/{name}"


def combo_words(combo_id: str) -> str:
    """Label of a combo id, e.g. "2xl40s us-east spot", "4xh100 us owned prefill + 2 of 4xh100 us
    owned decode". ">" joins the stages of a pipeline; a cell reads "(audio, 4 llm) on a100 us-east
    on-demand". A string that is no combo id is returned unchanged."""
    try:
        _, instances = parse_instances(combo_id)
    except InvalidValue:
        return combo_id
    if instances[0][0].deployment:
        return _cell((m for own in instances for m in own), _pool_words)
    parts = []
    for members in instances:
        words = []
        for member in members:
            region, name, market = member.pool.split("/")
            several = f"{member.count} of " if member.count > 1 else ""
            words.append(f"{several}{member.gpus}x{name} {region} {market}")
        parts.append(" > ".join(words) + _PHASES[members[0].phase.value])
    return " + ".join(parts)


def pools_of(combo_id: str) -> tuple[str, ...]:
    """The pools of a combo id, in its order; none for a string that is no combo id."""
    try:
        _, instances = parse_instances(combo_id)
    except InvalidValue:
        return ()
    return tuple(dict.fromkeys(member.pool for own in instances for member in own))


def change_words(change: Iterable[tuple[str, int]]) -> str:
    """Label of a change, e.g. "+1 2xl40s us-east spot, -2 1xl4 eu-west on-demand"; empty for no
    change."""
    return ", ".join(f"{count:+d} {combo_words(combo)}" for combo, count in change)


def several(count: int, combo: Combo, pools: Mapping[str, Pool]) -> str:
    """Label of `count` combos: "3 instances of 4xL40S us-east spot". A combo of several instances
    is a group. pools: by pool id."""
    single = sum(member.count for member in combo.members) == 1
    noun = "instance" if single else "group"
    return f"{count} {noun}{'' if count == 1 else 's'} of {short_name(combo, pools)}"


def short_name(combo: Combo, pools: Mapping[str, Pool]) -> str:
    """Label of a combo for people: "4xL40S us-east spot", or with matched phases in brackets "(2
    prefill 1xL4 + 3 decode 4xL40S) us-east spot". ">" joins the stages of a pipeline: "(prefill
    1xL40S > 1xL4 + decode 4xH100) us-east on-demand", "(1xL40S > 1xL40S) us-east spot". A cell
    reads "(audio, 4 llm) on A100 us-east spot". pools: by pool id."""
    if combo.members[0].deployment:
        return _cell(combo.members, lambda pool: _gpu_words(pools[pool]))
    markets = "/".join(dict.fromkeys(member.pool.split("/")[2] for member in combo.members))
    if all(m.phase is Phase.AGGREGATED and not m.stage for m in combo.members):
        return f"{_slices(combo.members[0], pools)} {combo.region} {markets}"
    phases: dict[Phase, list[ComboMember]] = {}
    for member in combo.members:
        phases.setdefault(member.phase, []).append(member)
    parts = []
    for phase, members in phases.items():
        if members[0].stage:
            stages = " > ".join(_counted(member, pools) for member in members)
            parts.append(stages if phase is Phase.AGGREGATED else f"{phase} {stages}")
        else:
            parts.append(", ".join(f"{m.count} {phase} {_slices(m, pools)}" for m in members))
    return f"({' + '.join(parts)}) {combo.region} {markets}"


def _cell(members: Iterable[Member | ComboMember], where: Callable[[str], str]) -> str:
    """The label of a cell: its deployments, pool by pool. where: returns the label of a pool id."""
    runs: dict[str, list[str]] = {}
    for member in members:
        times = f"{member.count} " if member.count > 1 else ""
        runs.setdefault(member.pool, []).append(times + member.deployment)
    return " + ".join(
        f"{names[0] if len(names) == 1 else '(' + ', '.join(names) + ')'} on {where(pool)}"
        for pool, names in runs.items()
    )


def _pool_words(pool_id: str) -> str:
    region, name, market = pool_id.split("/")
    return f"{name} {region} {market}"


def _gpu_words(pool: Pool) -> str:
    return f"{short_gpu_name(pool.gpu.name)} {pool.region} {pool.market}"


def _counted(member: ComboMember, pools: Mapping[str, Pool]) -> str:
    slices = _slices(member, pools)
    return slices if member.count == 1 else f"{member.count} of {slices}"


def _slices(member: ComboMember, pools: Mapping[str, Pool]) -> str:
    return f"{member.gpus}x{short_gpu_name(pools[member.pool].gpu.name)}"
