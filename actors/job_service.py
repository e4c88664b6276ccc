"""Ray's job service: a command line is run once under an id, on the cluster, and looked after.

`JobService` is the port that the duty of scheduled reports speaks to, `RayJobs` is Ray's: its
client of the dashboard's job API, which knows no deadline, so each call is made in a thread of ours
and waited for as long as we like. There is one such thread: a service that hangs costs one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol, TypeVar

from state_machines.errors import MetarayError, Stopped

T = TypeVar("T")

CALL_SECONDS: Final = 10.0  #: our own deadline for one call
WORDS_MAX: Final = 500  #: characters of the service's own words in an error
MISSING: Final = "status code 404"

Status = Literal["running", "succeeded", "failed", "stopped"]
STATUSES: Final[dict[str, Status]] = {
    "PENDING": "running",
    "RUNNING": "running",
    "SUCCEEDED": "succeeded",
    "FAILED": "failed",
    "STOPPED": "stopped",
}


@dataclass(frozen=True, slots=True)
class JobState:
    """What became of a run so far."""

    status: Status
    detail: str = ""


class JobService(Protocol):
    """Whoever runs command lines on the cluster. Each method may raise Stopped: no answer."""

    async def state(self, run: str) -> JobState | None:
        """What became of a run; None when there was never one of this id."""
        ...

    async def submit(self, run: str, command: str) -> None:
        """Let a command line run under this id, unless one was submitted under it before."""
        ...

    async def stop(self, run: str) -> None:
        """Let a run be ended. Returns before it has."""
        ...


class NoJobs:
    """Where there is no job service: nothing was ever submitted, and nothing can be."""

    async def state(self, run: str) -> JobState | None:
        """None."""
        return None

    async def submit(self, run: str, command: str) -> None:
        """Raises Stopped."""
        raise Stopped(f"{run}: there is no job service here")

    async def stop(self, run: str) -> None:
        """Nothing runs."""


class RayJobs:
    """The job API of the dashboard of the Ray cluster that this process is connected to."""

    def __init__(self, connect: Callable[[], Any] | None = None) -> None:
        self._connect = connect or _connect
        self._client: Any = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="jobs")

    async def state(self, run: str) -> JobState | None:
        """What the dashboard says of it."""
        return await self._call(lambda client: _state(client, run))

    async def submit(self, run: str, command: str) -> None:
        """The service refuses an id that it knows: this happens once, however often it is asked."""

        def ask(client: Any) -> None:
            try:
                client.submit_job(entrypoint=command, submission_id=run)
            except RuntimeError:
                if _state(client, run) is None:
                    raise

        await self._call(ask)

    async def stop(self, run: str) -> None:
        """Politely first; the service kills what does not end."""
        await self._call(lambda client: client.stop_job(run))

    async def _call(self, ask: Callable[[Any], T]) -> T:
        def work() -> T:
            if self._client is None:
                self._client = self._connect()
            return ask(self._client)

        loop = asyncio.get_running_loop()
        try:
            return await asyncio.wait_for(loop.run_in_executor(self._thread, work), CALL_SECONDS)
        except MetarayError:
            raise
        except TimeoutError:
            raise Stopped(
                f"Ray's job service does not answer within {CALL_SECONDS:.0f} s"
            ) from None
        except Exception as error:  # noqa: BLE001  HTTP, JSON, Ray's own: whatever its client raises
            self._client = None  # the dashboard may be another by now
            words = " ".join(str(error).split())[:WORDS_MAX] or type(error).__name__
            raise Stopped(f"Ray's job service: {words}") from None


def _connect() -> Any:
    import ray
    from ray.job_submission import JobSubmissionClient

    return JobSubmissionClient(ray.get_runtime_context().gcs_address)


def _state(client: Any, run: str) -> JobState | None:
    try:
        found = client.get_job_info(run)
    except RuntimeError as error:
        if MISSING in str(error):
            return None
        raise
    return JobState(STATUSES[str(found.status)], found.message or "")
