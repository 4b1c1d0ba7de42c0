"""Locust's users: they make the calls of a profile, each when it is due, and note the answers.

Run by `make loadtest`, or by hand against any node that needs no key:

    locust -f loadtest/locustfile.py --host http://127.0.0.1:8080 --traffic steady \
        --headless --users 256 --spawn-rate 256

Each user takes the next call that is due, waits for its time, and makes it; Locust is told the
latency from then on. There must be more users than calls are under way. The process that starts the
run makes its boards; several share the load with `--processes`. Only processes that make load may
import this file, since Locust replaces what blocks in the standard library by what does not.
"""

from __future__ import annotations

import gc
import json
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import gevent
import msgspec
from geventhttpclient.url import URL
from locust import FastHttpUser, events, task
from locust.contrib.fasthttp import FAILURE_EXCEPTIONS
from locust.env import Environment
from locust.exception import StopUser
from locust.runners import LocalRunner, MasterRunner, Runner, WorkerRunner

from loadtest.generator_notes import CPU_SAMPLE_SECONDS, Acknowledged, Notebook
from loadtest.preparing import prepare
from loadtest.profiles import AROUND, CUP, CUP_PAGE, PROFILES, Call, Traffic
from loadtest.schedule import Arrival, Schedule, arrivals

ANSWER_SECONDS_MAX = 15.0  # more than a node takes to answer anything
OVER = "over"  # the message that a process has made its calls

_HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}


class _Standing(msgspec.Struct):
    period: str
    score: int


class _Applied(msgspec.Struct):
    status: str
    sequence: int
    standings: list[_Standing] = []


class _Entry(msgspec.Struct):
    member: str
    score: int


class _Seen(msgspec.Struct):
    sequence: int
    entry: _Entry


class _Problem(msgspec.Struct):
    code: str = ""


class RefusedError(Exception):
    """Raised for an answer that is not 200."""

    def __init__(self, status: int, text: bytes) -> None:
        try:
            code = msgspec.json.decode(text, type=_Problem).code
        except msgspec.DecodeError:
            code = ""
        super().__init__(f"{status} {code}".rstrip())


class Run:
    """What the users of one process share in a run.

    traffic: what each call says. schedule: the calls that are due. begun: when, by
    `time.perf_counter`.
    """

    def __init__(self, options: Namespace, runner: LocalRunner | WorkerRunner) -> None:
        profile = PROFILES[options.traffic]
        self.traffic = Traffic(
            profile, options.factor, options.seconds, options.run, options.begins_at
        )
        due = arrivals(profile, options.factor, options.seconds)
        self.schedule = Schedule(due, runner.worker_index, _processes(options))
        directory = Path(options.notes) if options.notes else None
        self.notebook = Notebook(directory, runner.worker_index)
        self.begun: float = time.perf_counter() + options.begins_at - time.time()
        self._runner = runner
        self._players = 0
        self._is_over = False
        gc.collect()
        gc.freeze()  # the collector need not look through the schedule while calls are due
        self._sampling = gevent.spawn(self._sample_cpu)

    def enter(self) -> None:
        """Count a user that makes calls."""
        self._players += 1

    def leave(self) -> None:
        """Count a user that found no more calls; with the last one, the run is over."""
        self._players -= 1
        if self._players or self._is_over:
            return
        self._is_over = True
        self._sampling.kill()
        self.notebook.sample_cpu()
        boards = {board.name: board.players for board in self.traffic.boards}
        self.notebook.write(boards, self.schedule, self.begun)
        self._runner.send_message(OVER, {"index": self._runner.worker_index})

    def wait_for(self, arrival: Arrival) -> float:
        """Wait until a call is due; returns when it was, which may be over."""
        due_at = self.begun + arrival.due_seconds
        ahead = due_at - time.perf_counter()
        if ahead > 0:
            gevent.sleep(ahead)
        return due_at

    def _sample_cpu(self) -> None:
        gevent.sleep(max(0.0, self.begun - time.perf_counter()))
        while True:
            self.notebook.sample_cpu()
            gevent.sleep(CPU_SAMPLE_SECONDS)


class Player(FastHttpUser):
    """One connection, and a call under way on it at most."""

    network_timeout = connection_timeout = ANSWER_SECONDS_MAX
    shared: Run

    def on_start(self) -> None:
        """Take the connection of this user's client, whose own calls cost twice as much."""
        assert self.host is not None  # Locust makes no user without
        self._run = Player.shared
        self._connection = self.client.client.clientpool.get_client(URL(self.host))

    @task
    def play(self) -> None:
        """Make calls until there are no more."""
        run = self._run
        run.enter()
        try:
            while (arrival := run.schedule.take()) is not None:
                due_at = run.wait_for(arrival)
                make = self._submit if arrival.call is Call.EVENT else self._read
                try:
                    make(arrival, due_at)
                except msgspec.DecodeError as error:
                    run.notebook.failed(arrival.call, f"an answer is not what it must be: {error}")
        finally:
            run.leave()
        raise StopUser

    def _submit(self, arrival: Arrival, due_at: float) -> None:
        traffic, notebook = self._run.traffic, self._run.notebook
        board = traffic.board(arrival.number).name
        event = traffic.event(arrival.number, arrival.seconds)
        text = self._call(
            Call.EVENT, "POST", f"/v1/boards/{board}/events", due_at, json.dumps(event).encode()
        )
        if text is None:
            return
        answer = msgspec.json.decode(text, type=_Applied)
        duplicate = answer.status == "duplicate"
        notebook.acknowledged(
            Acknowledged(
                board=board,
                key=event["idempotency_key"],
                member=event["member"],
                value=event["value"],
                sequence=answer.sequence,
                duplicate=duplicate,
                windows=tuple(standing.period for standing in answer.standings),
            )
        )
        if not duplicate:
            self._see(board, event["member"], answer, due_at)

    def _see(self, board: str, member: str, answer: _Applied, due_at: float) -> None:
        """Read what an event did, at its sequence or later; scores here only ever rise."""
        path = f"/v1/boards/{board}/members/{member}?min_sequence={answer.sequence}"
        text = self._call(Call.VISIBLE, "GET", path, time.perf_counter())
        if text is None:
            return
        seen = msgspec.json.decode(text, type=_Seen)
        scores = [each.score for each in answer.standings if each.period == "all_time"]
        if seen.sequence < answer.sequence or scores != [min(*scores, seen.entry.score)]:
            self._run.notebook.failed(Call.VISIBLE, "a read did not see the event before it")
        else:
            self._run.notebook.seen(due_at, time.perf_counter())

    def _read(self, arrival: Arrival, due_at: float) -> None:
        traffic, call, number = self._run.traffic, arrival.call, arrival.number
        path = f"/v1/boards/{traffic.board(number).name}"
        match call:
            case Call.TOP:
                self._call(call, "GET", f"{path}/top?limit=10", due_at)
            case Call.MEMBER:
                self._call(call, "GET", f"{path}/members/{traffic.member(number)}", due_at)
            case Call.AROUND:
                query = f"member={traffic.member(number)}&above={AROUND}&below={AROUND}"
                self._call(call, "GET", f"{path}/around?{query}", due_at)
            case Call.FRIENDS:
                body = json.dumps({"members": traffic.friends(number)}).encode()
                self._call(call, "POST", f"{path}/members/lookup", due_at, body)
            case Call.CUP:
                query = f"period={CUP}&limit={CUP_PAGE}"
                text = self._call(call, "GET", f"{path}/top?{query}", due_at)
                if text is not None and (answer := json.loads(text))["period"]["closed"]:
                    self._run.notebook.closed(answer)

    def _call(
        self, call: Call, method: str, path: str, due_at: float, body: bytes = b""
    ) -> bytes | None:
        """Call the node, and tell Locust and the notebook; None for all but a 200."""
        text = b""
        failure: Exception | None = None
        try:
            response = self._connection.request(method, path, body, _HEADERS)
            text = bytes(response.read())
            if response.status_code != 200:
                failure = RefusedError(response.status_code, text)
        except FAILURE_EXCEPTIONS as error:
            failure = error
        now = time.perf_counter()
        self.environment.events.request.fire(
            request_type=method,
            name=call,
            response_time=1e3 * (now - due_at),
            response_length=len(text),
            exception=failure,
            context={},
        )
        reason = None if failure is None else f"{type(failure).__name__}: {failure}"
        self._run.notebook.answered(call, due_at, now, reason)
        return text if failure is None else None


def _processes(options: Namespace) -> int:
    """Count the processes that share the load."""
    return max(1, options.processes or 0)


def _add_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("The traffic of ranknode")
    group.add_argument("--traffic", choices=sorted(PROFILES), default="steady")
    group.add_argument("--factor", type=float, default=0.2, help="times five million players a day")
    group.add_argument("--seconds", type=float, default=60.0, help="how long calls are due")
    group.add_argument("--notes", default="", help="directory for notes and journals")


def _be_told_of_the_end(environment: Environment, runner: Runner, **_: Any) -> None:
    """Have the process that started a run end it once all have made their calls."""
    if isinstance(runner, WorkerRunner):
        return
    assert environment.parsed_options is not None  # there are none without a command line
    processes = _processes(environment.parsed_options)
    told: set[int] = set()

    def end(msg: Any, **_: Any) -> None:
        told.add(msg.data["index"])
        if len(told) == processes:
            told.clear()
            # In a greenlet of its own: both end all users, who may be who calls this.
            gevent.spawn(runner.quit if environment.web_ui is None else runner.stop)

    runner.register_message(OVER, end)


def _begin(environment: Environment, **_: Any) -> None:
    runner, options = environment.runner, environment.parsed_options
    assert runner is not None  # it is a runner that begins
    assert options is not None
    if isinstance(runner, LocalRunner | MasterRunner):
        if environment.host is None:
            raise SystemExit("--host: which node?")
        profile = PROFILES[options.traffic]
        traffic = prepare(environment.host, profile, options.factor, options.seconds)
        # What is set here is sent to the other processes.
        options.run, options.begins_at = traffic.run, traffic.begins_at
    if isinstance(runner, LocalRunner | WorkerRunner):
        Player.shared = Run(options, runner)


events.init_command_line_parser.add_listener(_add_options)
events.init.add_listener(_be_told_of_the_end)
events.test_start.add_listener(_begin)
