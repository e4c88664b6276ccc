"""Scheduled reports reach Ray's job service once each, whoever stops in between."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from actors import job_service
from actors.duties.schedules import TOO_LONG, Schedules
from actors.job_service import JobState, NoJobs, RayJobs
from actors.planners.schedules import RUNNING_MAX, command_of, plan_runs, run_id
from state_machines.errors import Stopped
from state_machines.metadata.schedule import (
    DeleteSchedule,
    GetSchedule,
    PutSchedule,
    Schedule,
)
from tests.actors.duty_world import World
from tests.actors.virtual_time import in_virtual_time
from tests.entities.group import Group

HOUR_S = 3_600


def put(world: World, name: str = "hourly", **more: Any) -> Schedule:
    wanted: dict[str, Any] = {"job": "lag", "every_ms": HOUR_S * 1_000, "out": "/reports"}
    made: Schedule = world.run(PutSchedule(name=name, **{**wanted, **more}))
    return made


def row(world: World, name: str = "hourly") -> Schedule:
    found: Schedule = world.ask(GetSchedule(name=name))
    return found


def test_a_report_is_submitted_when_due_and_its_end_is_written_down() -> None:
    @in_virtual_time
    async def run() -> None:
        world = World()
        due_ms = put(world).next_ms
        await world.step(Schedules)
        first = row(world).run
        assert first == run_id("hourly", due_ms)
        assert world.jobs.states == {first: JobState("running")}
        await world.step(Schedules)
        assert world.jobs.asked == [first]
        world.jobs.states[first] = JobState("failed", "Traceback\n…\nNoJava: \0 Spark")
        await world.step(Schedules)
        ended = row(world)
        assert (ended.run, ended.last_outcome) == ("", "failed")
        assert ended.last_detail == "Traceback … NoJava: Spark"
        await asyncio.sleep(HOUR_S)
        await world.step(Schedules)
        assert row(world).run == run_id("hourly", due_ms + HOUR_S * 1_000)
        assert len(world.jobs.commands) == 2

    run()


def test_a_controller_that_stops_in_between_is_taken_over_from() -> None:
    """The run is in its row before Ray has it: the next one submits the same, and Ray takes one."""

    @in_virtual_time
    async def run() -> None:
        world = World()
        put(world)
        world.jobs.away = True
        controller = world.controller(Schedules, epoch=4)
        await controller.step()
        assert controller.records["schedules"].last_error == (
            "Stopped: Ray's job service: connection refused"
        )
        begun = row(world).run
        assert begun
        assert world.jobs.asked == []
        world.jobs.away = False
        await world.step(Schedules, epoch=5)
        assert world.jobs.asked == [begun]
        # And one that stopped after Ray had it: the same id again, and nothing runs twice.
        await world.jobs.submit(begun, "again")
        assert list(world.jobs.commands) == [begun]
        assert world.jobs.commands[begun] != "again"

    run()


def test_one_run_a_name_and_a_few_at_once() -> None:
    @in_virtual_time
    async def run() -> None:
        world = World()
        for name in ("a", "b", "c"):
            put(world, name)
        put(world, "off", enabled=False)
        await world.step(Schedules)
        await world.step(Schedules)
        assert len(world.jobs.commands) == RUNNING_MAX == 2
        world.jobs.states = dict.fromkeys(world.jobs.states, JobState("succeeded", "fine"))
        await world.step(Schedules)
        assert sorted(row(world, name).runs for name in ("a", "b", "c", "off")) == [0, 1, 1, 1]
        assert (row(world, "a").last_outcome, row(world, "a").last_detail) == ("succeeded", "")
        await asyncio.sleep(HOUR_S)
        await world.step(Schedules)
        assert row(world, "c").runs == 1, "it still runs, and is not begun again"

    run()


def test_a_run_that_takes_too_long_is_stopped() -> None:
    @in_virtual_time
    async def run() -> None:
        world = World()
        put(world, timeout_ms=60_000)
        await world.step(Schedules)
        begun = row(world).run
        await asyncio.sleep(60)
        await world.step(Schedules)
        assert world.jobs.stopped == []
        await asyncio.sleep(1)
        await world.step(Schedules)
        assert world.jobs.stopped == [begun]
        await world.step(Schedules)
        assert (row(world).last_outcome, row(world).last_detail) == ("stopped", TOO_LONG)

    run()


def test_a_schedule_that_was_deleted_meanwhile_is_nobodys_business() -> None:
    @in_virtual_time
    async def run() -> None:
        world = World()
        put(world)
        controller = world.controller(Schedules)
        state = world.jobs.state

        async def deleted_meanwhile(run: str) -> JobState | None:
            world.run(DeleteSchedule(name="hourly"))
            return await state(run)

        await controller.step()
        world.jobs.states = dict.fromkeys(world.jobs.states, JobState("succeeded"))
        world.jobs.state = deleted_meanwhile  # type: ignore[method-assign]
        controller = await world.step(Schedules)
        assert world.ask(GetSchedule(name="hourly")) is None

    run()


def test_the_longest_due_comes_first() -> None:
    due = Group("metadata").run(
        PutSchedule(name="b", job="lag", every_ms=HOUR_S * 1_000, out="/reports")
    )
    rows = [due, replace(due, name="a"), replace(due, name="off", enabled=False)]
    rows.append(replace(due, name="z", next_ms=due.next_ms - 1))
    assert [each.name for each in plan_runs(rows, due.next_ms)] == ["z", "a"]
    assert [each.name for each in plan_runs(rows[:3], due.next_ms)] == ["a", "b"]
    assert plan_runs([replace(due, run="r"), *rows], due.next_ms)[0].name == "z"
    assert plan_runs(rows[:3], due.next_ms - 1) == []


def test_an_id_tells_names_apart_and_is_fit_for_a_file() -> None:
    ids = {run_id(name, 7) for name in ("a b", "a-b", "A B", "日本", "", "../x", "n" * 300)}
    assert len(ids) == 7
    assert all(set(each) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for each in ids)
    assert all(len(each) < 100 for each in ids)


def test_values_are_quoted_and_never_options() -> None:
    made = Group("metadata").run(
        PutSchedule(
            name="n",
            job="lag",
            every_ms=HOUR_S * 1_000,
            out="/out dir/$(id)",
            options=("a=; rm -rf ~", "--all=1"),
            inputs=("watermarks=/w'x.parquet",),
            history="/h`id`",
        )
    )
    assert shlex.split(command_of(made, "/usr/bin/python3")) == [
        *("/usr/bin/python3", "-m", "metaray.cli", "report", "lag", "--address=auto"),
        "--out=/out dir/$(id)",
        "--set=a=; rm -rf ~",
        "--set=--all=1",
        "--input=watermarks=/w'x.parquet",
        "--history=/h`id`",
    ]


class Dashboard:
    """What Ray's client of the job API does, by its own documentation."""

    def __init__(self) -> None:
        self.jobs: dict[str, SimpleNamespace] = {}
        self.lost = 0  #: answers that go missing

    def submit_job(self, *, entrypoint: str, submission_id: str) -> str:
        if submission_id in self.jobs:
            raise RuntimeError(f"Request failed with status code 500: {submission_id} exists")
        self.jobs[submission_id] = SimpleNamespace(status="PENDING", message=None)
        if self.lost:
            self.lost -= 1
            raise RuntimeError("Request failed with status code 502: no answer")
        return submission_id

    def get_job_info(self, name: str) -> SimpleNamespace:
        if name not in self.jobs:
            raise RuntimeError(f"Request failed with status code 404: Job {name} does not exist.")
        return self.jobs[name]

    def stop_job(self, name: str) -> bool:
        self.jobs[name].status = "STOPPED"
        return True


def test_rays_client_is_asked_and_an_id_it_knows_is_no_error() -> None:
    board = Dashboard()

    async def run() -> None:
        jobs = RayJobs(lambda: board)
        assert await jobs.state("r") is None
        board.lost = 1  # it was submitted, and the answer got lost
        await jobs.submit("r", "true")
        await jobs.submit("r", "true")
        assert await jobs.state("r") == JobState("running")
        await jobs.stop("r")
        assert await jobs.state("r") == JobState("stopped")
        board.jobs["r"] = SimpleNamespace(status="FAILED", message="why")
        assert await jobs.state("r") == JobState("failed", "why")

    asyncio.run(run())


def test_a_service_that_is_not_there_or_hangs_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> Any:
        raise ConnectionError("Failed to connect to Ray at address:\nhttp://127.0.0.1:1")

    async def fails(connect: Callable[[], Any], words: str) -> None:
        with pytest.raises(Stopped, match=words):
            await RayJobs(connect).state("r")

    asyncio.run(fails(refused, "job service: Failed to connect to Ray at address: http"))
    monkeypatch.setattr(job_service, "CALL_SECONDS", 0.01)
    asyncio.run(fails(lambda: time.sleep(0.3), "does not answer within"))

    async def nobody() -> None:
        with pytest.raises(Stopped, match="there is no job service here"):
            await NoJobs().submit("r", "true")
        assert await NoJobs().state("r") is None
        await NoJobs().stop("r")

    asyncio.run(nobody())
