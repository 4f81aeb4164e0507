"""Fuzz test of public configurations: each mutation gives an architecture or a one-line error.

`python -m loadtests.checkpoint_fuzz --count 20000 --seed 1` prints the number of each result. The
exit code is 1 if a mutation gives neither.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any

from autoscaler.domain.validation import InvalidValue
from autoscaler.performance.architecture import from_json
from loadtests.checkpoint_table import facts

_ODD: tuple[Any, ...] = (
    None, "", [], {}, -1, 0, 1, 3, 1e308, float("nan"), float("inf"), 10**30, 10**400, True, False,
    "x", ["a"], [1], [[]], {"a": 1}, [None], "re:(", 2.5, [0] * 5, "bfloat16", {"": None}, 128,
    10**7, "a\nb", "\x1b[31m", [{"a": [1]}], 65536, "model.layers.*", "re:" + "a*" * 40,
)  # fmt: skip
_ODD_KEYS = ("", "a\nb", "\x1b[2J", "re:(", "x" * 500, "\u202e", "quant_method")
_LONGEST_LINE = 2000
_LARGEST = 30_000  # in characters; larger configurations are not mutated


def mutated(config: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """`config` with one to five of its values removed, replaced, or copied elsewhere."""
    found = copy.deepcopy(config)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 5))):
        places = list(_places(found))
        if not places:
            break
        place = chance.choice(places)
        holder = _at(found, place[:-1])
        kind = chance.random()
        if kind < 0.25:
            value = holder[place[-1]]
            del holder[place[-1]]
            if kind < 0.05 and isinstance(holder, dict):
                holder[chance.choice(_ODD_KEYS)] = value
        elif kind < 0.8:
            holder[place[-1]] = copy.deepcopy(chance.choice(_ODD))
        else:
            holder[place[-1]] = copy.deepcopy(_at(found, chance.choice(places)))
    return found


def run(count: int, seed: int) -> Counter[str]:
    """Number of results of `count` mutations: "read", "refused", or an error, with an example of
    each error.
    """
    chance = random.Random(seed)
    configs = [row["config"] for row in facts().values()]
    configs = [one for one in configs if len(json.dumps(one)) < _LARGEST]
    return Counter(_ended(mutated(chance.choice(configs), chance)) for _ in range(count))


def _ended(config: dict[str, Any]) -> str:
    text = json.dumps(config)
    try:
        from_json("x", text)
    except InvalidValue as refused:
        line = str(refused)
        if not line.isprintable() or len(line) > _LONGEST_LINE:
            return f"no printable line: {line[:200]!r}"
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error} for {text[:500]}"
    return "read"


def _places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = node.items() if isinstance(node, dict) else ()
    if isinstance(node, list):
        items = list(enumerate(node))[:6]
    for key, value in items:
        yield (*path, key)
        yield from _places(value, (*path, key))


def _at(node: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        node = node[key]
    return node


def main(argv: list[str] | None = None) -> int:
    """Run the mutations; return 1 if a mutation gives neither an architecture nor a one-line
    error."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.checkpoint_fuzz")
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args(argv)
    found = run(arguments.count, arguments.seed)
    for how, times in found.most_common():
        print(f"{times:7} {how}")
    return 1 if found.keys() - {"read", "refused"} else 0


if __name__ == "__main__":
    sys.exit(main())
