"""Formats and parses combo ids."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Phase


def combo_id(model: str, members: Iterable[tuple[Phase, int, str, int]]) -> str:
    """Id of a combo with members (phase, GPUs, pool id, count), e.g.
    "chat:p4@us/h100/owned+2d4@..."."""
    return format_combo_id(model, [[Member(*member)] for member in members])


def parse_combo_id(name: str) -> tuple[str, tuple[tuple[Phase, int, str, int], ...]]:
    """The model, and (phase, GPUs, pool id, count) of each member. Raises InvalidValue if `name` is
    not a combo id.

    Model names may contain colons and slashes; pool names must not contain any of ":+>&".
    """
    model, instances = parse_instances(name)
    return model, tuple((m.phase, m.gpus, m.pool, m.count) for i in instances for m in i)


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a combo id.

    Written as [count]letter gpus[.layers]@pool, or [count]c gpus.deployment@pool in a cell of a
    model of components.
    """

    phase: Phase
    gpus: int
    pool: str
    count: int
    stage: int = 0
    layers: int = 0
    deployment: str = ""

    def __str__(self) -> str:
        if self.deployment:
            many = self.count if self.count > 1 else ""
            return f"{many}c{self.gpus}.{self.deployment}@{self.pool}"
        layers = f".{self.layers}" if self.stage else ""
        count = self.count if self.count > 1 else ""
        return f"{count}{self.phase.value[0]}{self.gpus}{layers}@{self.pool}"


_MEMBER = re.compile(r"(\d*)([pda])(\d+)(?:\.(\d+))?@(.+)", re.ASCII)
_CELL = re.compile(r"(\d*)c(\d+)\.([A-Za-z0-9][A-Za-z0-9._-]*)@(.+)", re.ASCII)
_PHASES = {phase.value[0]: phase for phase in Phase}


def format_combo_id(model: str, instances: list[list[Member]]) -> str:
    """The id of `instances`: "+" joins the instances, ">" the stages of one instance, "&" the nodes
    of one stage."""
    texts = []
    for members in instances:
        text = str(members[0])
        for before, member in pairwise(members):
            text += ("&" if member.stage == before.stage else ">") + str(member)
        texts.append(text)
    return f"{model}:{'+'.join(texts)}"


def parse_instances(name: str) -> tuple[str, list[list[Member]]]:
    """The model, and the members of each instance. Raises InvalidValue if `name` is not a combo
    id."""
    model, _, body = name.rpartition(":")
    instances = []
    for text in body.split("+"):
        members = []
        stages = text.split(">")
        for stage, at_once in enumerate(stages, start=1):
            for part in at_once.split("&"):
                cell = _CELL.fullmatch(part)
                if cell is not None and model:
                    count, gpus = int(cell[1] or 1), int(cell[2])
                    phase = Phase.AGGREGATED
                    members.append(Member(phase, gpus, cell[4], count, deployment=cell[3]))
                    continue
                match = _MEMBER.fullmatch(part)
                if match is None or not model or (match[4] is None) != (text == part):
                    allowed = 'a combo such as "chat:p4@us-east/h100/owned+2d4@us-east/h100/owned"'
                    raise InvalidValue("combo", name, allowed)
                layers = int(match[4] or 0)
                count, gpus = int(match[1] or 1), int(match[3])
                phase = _PHASES[match[2]]
                members.append(Member(phase, gpus, match[5], count, stage if layers else 0, layers))
        instances.append(members)
    return model, instances
