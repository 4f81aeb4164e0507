"""Replay of a recorded trace through Locust, against any OpenAI-compatible gateway.

    make loadtest ARGS="--host URL --trace FILE --shoal-config shoal.yaml --headless"

Every request is sent at its recorded time, whether or not earlier ones were answered. Latencies
count from that time. Answers are streamed. Locust's own statistics get rows for each model: TTFT,
TPOT and the whole request in ms, and `SLO`, whose failures are requests that missed the SLO.
Workers (--processes N, or --worker on other hosts) share the trace: each of N sends every N-th
request. At the end the requested and the sent rate are compared. If the generator was late, the
latencies are not valid and the exit code is 3.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import gevent
from locust import User, constant, events, task
from locust.runners import LocalRunner, MasterRunner, WorkerRunner

from loadtests.replay.client import BrokenAnswer, Client
from loadtests.replay.report import Late, Outcome, Totals
from streams.files.shoal_yaml import load_config
from streams.files.user_errors import UserError
from streams.tools.replay.replay_report import Limits
from streams.tools.replay.request_schedule import Job, schedule
from streams.tools.replay.traces import COLUMNS_HELP, load_trace, parse_columns

log = logging.getLogger("replay")

_LEAD_S = 1.0
_SHARE = "replay-share"


class Replay(User):
    """The user class that Locust requires. The driver sends the requests, each
    in its own greenlet.
    """

    fixed_count = 1
    wait_time = constant(3600.0)

    @task
    def wait(self) -> None:
        """Do nothing, because the driver sends."""


@events.init_command_line_parser.add_listener
def _options(parser: Any) -> None:
    group = parser.add_argument_group("replay")
    group.add_argument("--trace", required=True, help="of any form in docs/reference/formats.md")
    group.add_argument("--columns", default="", help=COLUMNS_HELP)
    group.add_argument("--shoal-config", default="", help="models, shares, SLOs")
    group.add_argument("--model", default="", help="one model for all requests")
    group.add_argument("--ttft-ms", type=float, default=2000.0, help="SLO with --model (2000)")
    group.add_argument("--tpot-ms", type=float, default=80.0, help="SLO with --model (80)")
    group.add_argument("--speed", type=float, default=1.0, help="times as fast as recorded (1)")
    group.add_argument("--for", dest="for_s", type=float, default=0.0, help="s of the trace (all)")
    group.add_argument("--seed", type=int, default=1, help="of the split over models (1)")
    group.add_argument("--timeout", type=float, default=300.0, help="s for one answer (300)")
    group.add_argument("--api-key", default="", env_var="SHOAL_API_KEY", help="bearer token")


class Driver:
    """Sends one worker's share of the requests, and keeps the outcomes until they are reported."""

    def __init__(self, environment: Any) -> None:
        self.environment = environment
        self.options = environment.parsed_options
        self.outcomes: list[Outcome] = []
        self.late: list[Late] = []
        self.limits: dict[str, Limits | None] = {}

    def run(self, index: int, workers: int) -> None:
        """Send every `workers`-th job from `index` on, then wait for all answers."""
        jobs, self.limits = jobs_of(self.options)
        mine = jobs[index::workers]
        client = Client(self.environment.host, self.options.timeout, self.options.api_key)
        start_s = time.monotonic() + _LEAD_S
        sent = []
        for job in mine:
            due_s = start_s + job.at_ms / 1000.0 / self.options.speed
            gevent.sleep(max(0.0, due_s - time.monotonic()))
            self.late.append((job.at_ms, 1000.0 * (time.monotonic() - due_s)))
            sent.append(gevent.spawn(self._one, client, job, due_s))
        gevent.joinall(sent)

    def _one(self, client: Client, job: Job, due_s: float) -> None:
        try:
            answer = client.complete(job.model, job.input_tokens, job.output_tokens, due_s)
        except Exception as error:
            reason = str(error) if isinstance(error, BrokenAnswer) else type(error).__name__
            self._fire("request", job.model, 1000.0 * (time.monotonic() - due_s), error=error)
            self._fire("SLO", job.model, 0.0, error=error)
            self.outcomes.append((job.model, reason, 0.0, 0.0, 0, 0))
            return
        tokens = answer.output_tokens or job.output_tokens
        tpot_ms = (answer.last_ms - answer.first_ms) / max(1, tokens - 1)
        self._fire("TTFT", job.model, answer.first_ms)
        if tokens > 1:
            self._fire("TPOT", job.model, tpot_ms)
        self._fire("request", job.model, answer.last_ms)
        limits = self.limits[job.model]
        missed = limits and (answer.first_ms > limits.ttft_ms or tpot_ms > limits.tpot_ms)
        self._fire("SLO", job.model, 0.0, error=AssertionError("missed") if missed else None)
        read = answer.input_tokens or job.input_tokens
        self.outcomes.append((job.model, "", answer.first_ms, answer.last_ms, read, tokens))

    def _fire(self, kind: str, model: str, ms: float, error: BaseException | None = None) -> None:
        self.environment.events.request.fire(
            request_type=kind,
            name=model,
            response_time=ms,
            response_length=0,
            exception=error,
            context={},
        )


def jobs_of(options: Any) -> tuple[list[Job], dict[str, Limits | None]]:
    """The schedule of the whole trace, and the SLO of each model. Raises
    UserError for bad input.
    """
    trace = load_trace(Path(options.trace), parse_columns(options.columns))
    for_ms = options.for_s * 1000.0 * options.speed or float("inf")
    if options.shoal_config:
        services = load_config(options.shoal_config).cluster.services
        weights = {s.model: s.traffic_share for s in services}
        longest = {s.model: s.max_len_tokens for s in services}
        limits: dict[str, Limits | None] = {
            s.model: Limits(s.slo.ttft_ms, s.slo.tpot_ms) for s in services
        }
    elif options.model:
        weights, longest = {options.model: 1.0}, {options.model: 1 << 62}
        limits = {options.model: Limits(options.ttft_ms, options.tpot_ms)}
    else:
        raise UserError("--shoal-config or --model is needed: who are the requests for?")
    return schedule(trace, weights, longest, options.seed, for_ms), limits


@events.init.add_listener
def _wire(environment: Any, **_: Any) -> None:
    """Connect the processes.

    The master keeps the totals and the workers send. A single process does both.
    """
    runner = environment.runner
    if runner is None:
        return
    totals, driver = Totals(), Driver(environment)
    try:
        jobs, limits = jobs_of(environment.parsed_options)
    except UserError as error:
        raise SystemExit(f"loadtest: {error}") from None

    def share(msg: Any, **_: Any) -> None:
        ids = msg.data["workers"]
        mine = ids.index(runner.client_id) if isinstance(runner, WorkerRunner) else 0
        gevent.spawn(_drive, driver, runner, mine, len(ids), totals)

    runner.register_message(_SHARE, share)
    runner.register_message("replay-done", lambda **_: _worker_done(runner, totals))

    @environment.events.test_start.add_listener
    def _start(**_: Any) -> None:
        if isinstance(runner, WorkerRunner):
            return
        totals.begin(jobs, limits, environment.parsed_options.speed)
        if isinstance(runner, MasterRunner):
            ids = sorted(runner.clients)
            totals.workers = len(ids)
            for client in ids:
                runner.send_message(_SHARE, {"workers": ids}, client_id=client)
        else:
            runner.send_message(_SHARE, {"workers": ["local"]})

    @environment.events.report_to_master.add_listener
    def _report(client_id: str, data: dict[str, Any], **_: Any) -> None:
        data["replay"] = (driver.outcomes, driver.late)
        driver.outcomes, driver.late = [], []

    @environment.events.worker_report.add_listener
    def _collect(client_id: str, data: dict[str, Any], **_: Any) -> None:
        totals.add(*data.get("replay", ([], [])))

    @environment.events.quitting.add_listener
    def _end(**_: Any) -> None:
        if not isinstance(runner, WorkerRunner) and totals.started:
            print(totals.text())
            environment.process_exit_code = totals.exit_code()


def _drive(driver: Driver, runner: Any, index: int, workers: int, totals: Totals) -> None:
    driver.run(index, workers)
    if isinstance(runner, LocalRunner):
        totals.add(driver.outcomes, driver.late)
        gevent.sleep(2.5)  # Locust writes CSV files every second; now they are complete.
        _stop(runner)
    else:
        gevent.sleep(4.0)  # Workers report every 3 s, so the last report is sent by then.
        runner.send_message("replay-done", {})


def _worker_done(runner: Any, totals: Totals) -> None:
    totals.workers -= 1
    if totals.workers == 0:
        _stop(runner)


def _stop(runner: Any) -> None:
    options = runner.environment.parsed_options
    if options.headless or options.autoquit >= 0:
        runner.quit()
    else:
        runner.stop()  # The web page with its charts and its report stays open.
