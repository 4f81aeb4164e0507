"""Two operators answer each proposal at once: `python -m loadtests.operator_history --help`.

Two controllers plan models in mode approve, on an embedded broker or a real Kafka. For each
proposal, two operators send an answer to a random controller at the same time, and repeat it with
the same id while it is not confirmed. Again and again, the leader is killed. At the end a third
operator answers every proposal too late. The history of all calls must be linearizable: an answer
is a write-once register, so the history is equal to one in which the calls happened one after the
other, each between its begin and its end, and the first one alone succeeded.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import math
import random
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout

from loadtests.arguments import whole
from loadtests.chaos.stack import CONTROLLERS, Stack, open_stack
from loadtests.linearizability import Call, explains
from streams.health.operators import OPERATORS_FILE, new_operator
from streams.operator_commands import new_command_id

_MODELS = 50
_CONFIG = (
    """
mode: approve
policy: {approve_within: 1m, replan_every: 10s}
regions: {here: {l4: {gpu: L4, per_node: 1, nodes: COUNT, owned: true}}}
defaults: {max_len: 8192}
models:
""".replace("COUNT", str(_MODELS))
    + "".join(
        f"  m{n}: {{source: meta-llama/Llama-3.2-1B, min: 1, slo: {{ttft: 2s, tpot: 100ms}}}}\n"
        for n in range(_MODELS)
    )
)
_OPERATORS = ("ann", "bob", "zoe")
_APPROVED = 0.05
"""Share of approvals: an approved model makes no further proposal."""
_KILL_EVERY = 45
_KILL_WITHIN_S = 5.0
_APART_S = 0.05
_RETRY_S = 0.5
_GIVE_UP_S = 60.0
_IDLE_S = 240.0


def violations(calls: Iterable[Call], unanswered: Sequence[Call]) -> list[str]:
    """The calls of each proposal that no order explains, or whose answers name the first answer to
    some operators only. unanswered: calls that may have taken
    effect at any time, or not at all."""
    by_proposal: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        by_proposal[call.subject].append(call)
    found = []
    for subject, own in by_proposal.items():
        maybe = [[one] for one in unanswered if one.subject == subject]
        # None is named if the proposal was lost with its leader, and perhaps none after its end.
        told = {bool(call.named) for call in own if call.who in _OPERATORS[:2]}
        if len(told) > 1 or not any(explains([*own, *more]) for more in ([], *maybe)):
            found.append("\n".join(map(str, own)))
    return found


class Race:
    """Operators of one run. tokens: by name. results: numbers of (operator, HTTP status, error of a
    call without an answer)."""

    def __init__(self, stack: Stack, tokens: dict[str, str], seed: int) -> None:
        self.calls: list[Call] = []
        self.unanswered: list[Call] = []
        self.results: Counter[tuple[str, int, str]] = Counter()
        self.kills = 0
        self._stack, self._tokens = stack, tokens
        self._rng = random.Random(f"shoal operators {seed}")

    async def run(self, count: int) -> None:
        """Answer `count` proposals, and then each once more."""
        seen: set[str] = set()
        fresh_s = time.monotonic()
        async with ClientSession(timeout=ClientTimeout(total=_GIVE_UP_S)) as session:
            async with asyncio.TaskGroup() as answers:
                while len(seen) < count:
                    fresh = [one for one in await self._open(session) if one not in seen]
                    for subject in fresh[: count - len(seen)]:
                        seen.add(subject)
                        fresh_s = time.monotonic()
                        for who in _OPERATORS[:2]:
                            answers.create_task(self._answer(session, subject, who))
                        if len(seen) % _KILL_EVERY == 0:
                            answers.create_task(self._kill())
                    if time.monotonic() - fresh_s > _IDLE_S:
                        raise RuntimeError(f"no new proposal for {_IDLE_S:.0f} s")
                    await asyncio.sleep(_APART_S)
            for subject in sorted(seen):
                await self._answer(session, subject, _OPERATORS[2])

    async def _kill(self) -> None:
        """Kill the leader at a random moment of the next answers."""
        await asyncio.sleep(self._rng.uniform(0.0, _KILL_WITHIN_S))
        self.kills += 1
        self._stack.signal(self._stack.leader(), signal.SIGKILL)

    async def _open(self, session: ClientSession) -> list[str]:
        """TOKEN.NUMBER of each open proposal of the leader."""
        url = f"http://127.0.0.1:{self._stack.ports[self._stack.leader()]}/v1/console"
        found: dict[str, Any] = {}
        with contextlib.suppress(ClientError, OSError, TimeoutError, ValueError):
            async with session.get(url) as response:
                found = await response.json()
        rows = found.get("proposals", {}).values()
        return [f"{row['token']}.{row['number']}" for row in rows]

    async def _answer(self, session: ClientSession, subject: str, who: str) -> None:
        """Answer one proposal, and repeat the answer until a controller confirms or refuses it."""
        await asyncio.sleep(_APART_S * self._rng.random())
        command = "approve" if self._rng.random() < _APPROVED else "reject"
        token, number = map(int, subject.split("."))
        asked = {"command": command, "proposal": number, "token": token, "why": "a race",
                 "id": new_command_id()}  # fmt: skip
        began = time.monotonic()
        status, found = await self._post(session, asked, who)
        while status not in (200, 400, 409) and time.monotonic() - began < _GIVE_UP_S:
            await asyncio.sleep(_RETRY_S)
            status, found = await self._post(session, asked, who)
        named = str(found["id"] if status == 200 else found.get("first", {}).get("id", ""))
        self.results[who, status, "" if status in (200, 409) else str(found.get("error", ""))] += 1
        call = Call(subject, who, began, time.monotonic(), 0, str(asked["id"]), named)
        if status in (200, 409):
            self.calls.append(call)
        else:
            self.unanswered.append(replace(call, named=call.command, ended=math.inf))

    async def _post(
        self, session: ClientSession, asked: dict[str, Any], who: str
    ) -> tuple[int, dict[str, Any]]:
        port = self._stack.ports[self._rng.choice(CONTROLLERS)]
        headers = {"Authorization": f"Bearer {self._tokens[who]}"}
        url = f"http://127.0.0.1:{port}/v1/controls"
        try:
            async with session.post(url, json=asked, headers=headers) as response:
                return response.status, await response.json()
        except (ClientError, OSError, TimeoutError, ValueError) as error:
            return 0, {"error": type(error).__name__}


async def _run(options: argparse.Namespace, folder: Path) -> int:
    people = {name: new_operator(name, "operate") for name in _OPERATORS}
    file = folder / "operators"
    file.write_text("".join(f"{one.line}\n" for one, _ in people.values()))
    file.chmod(0o600)
    async with AsyncExitStack() as closing:
        stack = await open_stack(
            closing, folder, options.broker, config=_CONFIG, executors=(), gateways=(),
            env={OPERATORS_FILE: str(file)},
        )  # fmt: skip
        race = Race(stack, {name: token for name, (_, token) in people.items()}, options.seed)
        await race.run(options.proposals)
    found = violations(race.calls, race.unanswered)
    print(*found, sep="\n")
    for (who, status, error), count in sorted(race.results.items()):
        print(f"{who}: {count} x {status} {error}")
    longest_s = max(call.ended - call.began for call in race.calls)
    print(f"{options.proposals} proposals, {race.kills} leaders killed, longest call "
          f"{longest_s:.1f} s, {len(found)} violations")  # fmt: skip
    return int(bool(found))


def main() -> int:
    """Exit codes: 0 the history is linearizable, 1 it is not, 2 bad arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--proposals", type=whole(1), default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--broker", default="", metavar="HOST:PORT", help="default: embedded")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="shoal-operators-") as made:
        return asyncio.run(_run(options, Path(made)))


if __name__ == "__main__":
    sys.exit(main())
