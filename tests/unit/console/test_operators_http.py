"""Commands of several operators at once: names from tokens and proxies, one answer for each
proposal, and histories that some order of the commands explains (linearizability)."""

from __future__ import annotations

import asyncio
import ipaddress
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoscaler.domain.cluster import Mode
from loadtests.linearizability import Call, explains
from streams.console.operator_endpoint import OperatorEndpoint
from streams.health.operators import NO_OPERATORS, Identity, Operator, new_operator
from tests.hang_limit import HANG_S
from tests.unit.console.console_world import USER_HEADER, World, world
from tests.unit.console.test_console_http import command, get
from topics.decisions import Decision
from topics.reason_codes import ReasonCode
from topics.records import Control


@pytest.fixture
def people(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A file with ann and bob, who may operate, and vic, who may read; and their tokens."""
    made = {name: new_operator(name, "operate") for name in ("ann", "bob")}
    made["vic"] = new_operator("vic", "read")
    path = tmp_path / "operators"
    lines = [one.line for one, _ in made.values()] + [Operator("pia", "operate").line]
    path.write_text("\n".join(lines) + "\n")
    return path, {name: token for name, (_, token) in made.items()}


People = tuple[Path, dict[str, str]]


async def test_the_name_comes_from_the_token_and_a_reader_may_not_operate(people: People) -> None:
    path, tokens = people
    async with world(operators_file=path) as at:
        asked = {"command": "pause", "model": "*", "why": "x", "who": "another"}
        assert (await command(at, tokens["ann"], **asked))[0] == 200
        assert [one.who for one in at.written] == ["ann"]
        code, said = await command(at, tokens["vic"], **asked)
        assert code == 403 and "vic may read only" in said["error"]
        assert (await command(at, "shoal_unknown", **asked))[0] == 401
        path.write_text(path.read_text().replace("ann operate", "ann read") + "\n")
        assert (await command(at, tokens["ann"], **asked))[0] == 403  # the file is read again


async def test_an_operators_token_may_read_too(people: People) -> None:
    path, tokens = people
    async with world(read_token="a-token-for-reads", operators_file=path) as at:
        for name in ("ann", "vic"):
            headers = {"Authorization": f"Bearer {tokens[name]}"}
            assert (await get(at, "/v1/console", **headers))[0] == 200
        assert (await get(at, "/v1/console"))[0] == 401


@pytest.mark.parametrize(
    ("proxy", "sent", "code"),
    [
        ("127.0.0.0/8", ["pia"], 200),
        ("127.0.0.0/8", ["eve"], 401),  # not in the file
        ("127.0.0.0/8", ["pia", "pia"], 401),
        ("127.0.0.0/8", [], 401),
        ("10.0.0.7/32", ["pia"], 401),  # the request does not come from the proxy
    ],
)
async def test_a_proxy_names_the_operator_only_from_its_own_address(
    people: People, proxy: str, sent: list[str], code: int
) -> None:
    network = ipaddress.ip_network(proxy)
    async with world(operators_file=people[0], proxies=(network,)) as at:
        port = int(at.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        body = b'{"command": "pause", "model": "*", "why": "x"}'
        lines = ["POST /v1/controls HTTP/1.1", "Host: 127.0.0.1", "Connection: close",
                 "Content-Type: application/json", f"Content-Length: {len(body)}",
                 *(f"{USER_HEADER}: {name}" for name in sent), "", ""]  # fmt: skip
        writer.write("\r\n".join(lines).encode() + body)
        assert int((await reader.read()).split()[1]) == code
        writer.close()
        assert [one.who for one in at.written] == (["pia"] if code == 200 else [])


async def test_the_second_answer_gets_the_name_of_the_first(people: People) -> None:
    path, tokens = people
    async with world(operators_file=path) as at:
        at.run(5)
        number = at.loop.state.models["tiny"].advisory.proposal.number  # type: ignore[union-attr]
        asked = {"command": "approve", "proposal": number, "why": "ok"}
        assert (await command(at, tokens["ann"], **asked))[0] == 200
        # The same person may repeat the answer, also without an id.
        code, said = await command(at, tokens["ann"], **asked)
        assert code == 200 and "already" in said["said"]
        for answer in ("approve", "reject"):
            code, said = await command(at, tokens["bob"], command=answer, proposal=number, why="no")
            assert code == 409 and f"#{number}: approved already by ann" in said["error"]
            assert said["first"] | {"at": 0} == {
                "who": "ann", "did": "approved", "why": "ok", "at": 0, "version": 1,
                "id": at.written[0].command_id,
            }  # fmt: skip
        assert len(at.written) == 1


async def test_an_answer_to_an_earlier_version_of_a_proposal_counts_once(people: People) -> None:
    path, tokens = people
    async with world(operators_file=path) as at:
        at.run(5)
        model = at.loop.state.models["tiny"]
        old = model.advisory.proposal
        assert old is not None
        newer = replace(old, number=90, earlier=(old,))
        states = at.loop.state.models
        advisory = replace(model.advisory, proposal=newer)
        at.loop.state = replace(
            at.loop.state, models={**states, "tiny": replace(model, advisory=advisory)}
        )
        at.loop.latest.take(
            Decision(90, old.leader_token, "tiny", "scale_out", at.tick_ms, False, "r",
                     expires_ms=old.expires_ms, change=old.change), 0,
        )  # fmt: skip
        for number, expected in ((old.number, 200), (90, 409)):
            asked = {"command": "approve", "proposal": number}
            code, said = await command(at, tokens["ann"], **asked)
            assert code == expected, said
        assert "approved already by ann" in said["error"]


async def test_an_answer_that_loses_the_race_with_a_tick_is_not_confirmed(people: People) -> None:
    """The proposal ends between the writing of the answer and its reading."""
    path, tokens = people
    async with world(operators_file=path) as at:
        at.run(5)
        open_ = at.loop.state.models["tiny"].advisory.proposal
        assert open_ is not None

        async def declared_otherwise() -> None:
            services = (replace(at.cluster.services[0], mode=Mode.RECOMMEND),)
            at.cluster = replace(at.cluster, services=services)
            at.run(1)

        at.before_read_back = declared_otherwise
        code, said = await command(at, tokens["ann"], command="approve", proposal=open_.number)
        assert code == 409 and "no longer open" in said["error"]


@pytest.mark.parametrize(
    ("code", "status"),
    [(ReasonCode.PROPOSAL_APPROVED, 200), (ReasonCode.PROPOSAL_WITHDRAWN, 409)],
)
async def test_a_standby_answers_with_the_decision_of_the_leader(
    people: People, code: ReasonCode, status: int
) -> None:
    path, tokens = people
    async with world(operators_file=path) as at:
        at.leads = False
        _open_proposals(at, 1)

        async def leader_decides() -> None:
            at.loop.latest.take(
                Decision(2, 3, "m1", "hold", 1, True, "because", codes=(code,), proposal=1), 0
            )

        at.before_read_back = leader_decides
        asked = {"command": "approve", "proposal": 1}
        assert (await command(at, tokens["ann"], **asked))[0] == status


async def test_an_answer_waits_until_its_proposal_is_read(people: People) -> None:
    """The console of the leader shows a proposal before the controller reads its decision back, and
    a standby reads it later still."""
    path, _ = people
    async with world(operators_file=path) as at:
        at.leads = False
        _open_proposals(at, 1)
        proposed = at.loop.latest.decisions.pop()
        asked = {"command": "approve", "proposal": 1, "token": 3}
        giving = asyncio.ensure_future(at.endpoint.give(asked, Identity("ann", True)))
        confirmed = asyncio.ensure_future(_other_leader(at))
        await asyncio.sleep(0)
        assert not giving.done() and not at.written
        at.loop.latest.take(proposed, 0)
        assert (await giving)[0] == 200
        confirmed.cancel()
        at.leads = True
        status, found = await at.endpoint.give({**asked, "proposal": 9}, Identity("bob", True))
        assert status == 409 and "no such proposal" in found["error"]


@pytest.mark.parametrize(("count", "over_http"), [(500, False), (40, True)])
async def test_two_operators_answer_every_proposal_and_each_has_one_answer(
    people: People, count: int, over_http: bool
) -> None:
    """Both answer every proposal at once, in random order, and the topic takes their answers in
    random order."""
    path, tokens = people
    rng = random.Random(7)
    answers: dict[int, dict[str, tuple[int, Any]]] = {}
    async with world(operators_file=path) as at:
        at.leads = False  # many open proposals at once: those of another leader
        confirmed = asyncio.ensure_future(_other_leader(at))
        _open_proposals(at, count)
        _scramble(at, rng)
        asked = [(who, number) for who in ("ann", "bob") for number in range(1, count + 1)]
        rng.shuffle(asked)

        async def answer(who: str, number: int) -> None:
            body = {"command": rng.choice(("approve", "reject")), "proposal": number, "why": "w"}
            if over_http:
                found = await command(at, tokens[who], **body)
            else:
                found = await at.endpoint.give(body, Identity(who, True))
            answers.setdefault(number, {})[who] = found

        await asyncio.gather(*(answer(*one) for one in asked))
        confirmed.cancel()
    for number, by in answers.items():
        first = at.loop.latest.controls[f"verdict/3.{number}"]
        (second,) = {"ann", "bob"} - {first.who}
        assert by[first.who][0] == 200 and by[second][0] == 409
        assert by[second][1]["first"]["who"] == first.who
        assert f"already by {first.who}" in by[second][1]["error"]
    firsts = [one.who for one in at.loop.latest.controls.values()]
    assert len(answers) == len(firsts) == count
    assert min(firsts.count("ann"), firsts.count("bob")) > count / 5


@pytest.mark.parametrize("seed", range(20))
async def test_histories_of_commands_are_linearizable(people: People, seed: int) -> None:
    """Five people pause, resume and answer at two controllers that share one topic and read it
    late. Each history is explained by one order of the calls; the winner is the one that every
    refusal names."""
    path, _ = people
    rng = random.Random(seed)
    async with world(operators_file=path) as one, world(operators_file=path) as two:
        for at in (one, two):
            at.leads = False
            _open_proposals(at, 6)
        confirmed = [asyncio.ensure_future(_other_leader(at)) for at in (one, two)]
        calls = await _history(rng, (one, two))
        for task in confirmed:
            task.cancel()
        states = [at.loop.latest.controls for at in (one, two)]
        assert states[0] == states[1]
    for subject in {call.subject for call in calls}:
        own = [call for call in calls if call.subject == subject]
        assert explains(own), "\n".join(map(str, own))


def test_the_checker_rejects_two_winners_and_a_winner_of_the_future() -> None:
    first = Call("verdict/3.1", "ann", 0.0, 1.0, 0, "ann-1", "ann-1")
    assert not explains([first, Call("verdict/3.1", "bob", 2.0, 3.0, 0, "bob-1", "bob-1")])
    late = Call("verdict/3.1", "bob", 2.0, 3.0, 0, "bob-1", "ann-1")
    assert explains([first, late])
    # Bob's refusal names a command that began after it.
    early = Call("verdict/3.1", "bob", -2.0, -1.0, 0, "bob-1", "ann-1")
    assert not explains([first, early])


async def test_commands_that_are_not_in_force_are_deleted_from_the_topic(people: People) -> None:
    path, tokens = people
    async with world(mode=Mode.ACT, operators_file=path) as at:
        at.run(2)
        for number in range(30):
            name = "pause" if number % 2 == 0 else "resume"
            code, _ = await command(at, tokens["ann"], command=name, model="tiny", why="w")
            assert code == 200
        async with asyncio.timeout(HANG_S):
            while at.loop.latest.commands.outdated:
                await asyncio.sleep(0)
        kept = {one.topic_key for one in at.written} - set(at.forgotten)
        assert kept == {at.loop.latest.controls["pause/tiny"].topic_key}
        assert at.loop.latest.controls["pause/tiny"].version == 30


async def test_a_command_names_the_version_that_it_answers(people: People) -> None:
    path, tokens = people
    async with world(mode=Mode.ACT, operators_file=path) as at:
        at.run(2)
        asked = {"command": "pause", "model": "tiny", "why": "w", "version": 0}
        assert (await command(at, tokens["ann"], **asked))[1]["version"] == 1
        assert (await command(at, tokens["ann"], **asked))[0] == 200  # repeated
        code, said = await command(at, tokens["bob"], **asked)
        assert code == 409 and "paused already by ann" in said["error"]
        asked = {"command": "resume", "model": "tiny", "version": 1}
        assert (await command(at, tokens["bob"], **asked))[0] == 200
        assert (await command(at, tokens["ann"], **asked))[0] == 409


def _open_proposals(at: World, count: int) -> None:
    """Proposals 1 to `count` of the leader with token 3, each for a model of its own."""
    expires_ms = at.loop.clock.now_ms() + 10_000_000
    for number in range(1, count + 1):
        at.loop.latest.take(
            Decision(number, 3, f"m{number}", "scale_out", 1, False, "r", expires_ms=expires_ms), 0
        )


async def _other_leader(at: World) -> None:
    """Decide about every answered proposal, as the leader does at its ticks."""
    decided: set[str] = set()
    while True:
        for key, one in list(at.loop.latest.controls.items()):
            if one.kind == "verdict" and key not in decided:
                decided.add(key)
                at.loop.latest.take(
                    Decision(1000 + len(decided), 3, one.scope, "hold", one.at_ms, True, "done",
                             proposal=one.proposal), 0,
                )  # fmt: skip
        await asyncio.sleep(0.01)


def _scramble(at: World, rng: random.Random) -> None:
    """Let commands wait for a random number of steps before they are read."""

    async def wait() -> None:
        for _ in range(rng.randrange(20)):
            await asyncio.sleep(0)

    at.before_read_back = wait


async def _history(rng: random.Random, worlds: tuple[World, World]) -> list[Call]:
    """Run random commands of five people at two endpoints over one topic, and record them."""
    topic: list[Control] = []
    read = [0, 0]
    calls: list[Call] = []
    clock = iter(range(10**9))

    async def publish(record: Control) -> None:
        for _ in range(rng.randrange(5)):
            await asyncio.sleep(0)
        topic.append(record)  # the broker's order
        for _ in range(rng.randrange(5)):
            await asyncio.sleep(0)

    async def reader(which: int) -> None:
        while True:
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            if read[which] < len(topic):
                worlds[which].loop.latest.take(topic[read[which]], 0)
                read[which] += 1
            await asyncio.sleep(0)

    endpoints = [OperatorEndpoint(at.loop, NO_OPERATORS, publish) for at in worlds]

    async def person(name: str) -> None:
        for number in range(8):
            which = rng.randrange(2)
            asked: dict[str, Any] = {"why": "w", "id": f"{name}-{number}"}
            if rng.random() < 0.5:
                asked |= {"command": rng.choice(("approve", "reject")),
                          "proposal": rng.randint(1, 6)}  # fmt: skip
                subject, expected = f"verdict/3.{asked['proposal']}", 0
            else:
                in_force = worlds[rng.randrange(2)].loop.latest.controls.get("pause/*")
                expected = in_force.version if in_force is not None else 0
                asked |= {"command": "pause", "model": "*", "version": expected}
                subject = "pause/*"
            began = next(clock)
            status, found = await endpoints[which].give(asked, Identity(name, True))
            assert status in (200, 409)
            named = found["id"] if status == 200 else found.get("first", {}).get("id", "")
            calls.append(Call(subject, name, began, next(clock), expected, asked["id"], named))

    readers = [asyncio.ensure_future(reader(which)) for which in (0, 1)]
    await asyncio.gather(*(person(name) for name in ("ann", "bob", "cem", "dan", "eve")))
    while read != [len(topic)] * 2:
        await asyncio.sleep(0)
    for task in readers:
        task.cancel()
    return calls
