"""Consumers that commit offsets in batches, and the memory of what was acknowledged to them.

Each consumer owns some groups and raises the offset of every partition of theirs again and again.
A row counts how often it was committed, so reading everything back shows more than the last value:
a commit that was lost, or applied twice by a retry, is off by one.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq

from metaray.client import Client
from state_machines.errors import Unknown
from state_machines.offset.offset import OffsetCommit

GROUPS = 600
TOPICS_PER_GROUP = 2
PARTITIONS = 4
TOPICS = 40
CONSUMERS = 12
BATCH = 500  #: commits in one call
STEP_MAX = 50  #: messages consumed between two commits of a partition, at most

Key = tuple[str, str, int]


@dataclass(slots=True)
class Consumers:
    """All consumers of the demo."""

    rng: Random
    acknowledged: int = 0
    calls: int = 0
    unknown: int = 0
    offsets: dict[Key, int] = field(default_factory=dict)
    commits: dict[Key, int] = field(default_factory=dict)
    doubtful: set[Key] = field(default_factory=set)
    progress: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def run(self, client: Client, target: int, stop: asyncio.Event) -> None:
        """Commit until `target` commits are acknowledged and `stop` is set. Raises what the first
        commit that fails raises."""
        groups = [f"group-{number:04}" for number in range(GROUPS)]
        # An earlier run over the same data has committed too, and counts would not be ours.
        await asyncio.gather(*(client.delete_group(group) for group in groups))
        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(CONSUMERS):
                    own = groups[number::CONSUMERS]
                    tasks.create_task(self._consume(client, own, target, stop))
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed

    async def _consume(
        self, client: Client, groups: list[str], target: int, stop: asyncio.Event
    ) -> None:
        keys = [
            (group, f"topic-{(number * TOPICS_PER_GROUP + topic) % TOPICS:02}", partition)
            for number, group in enumerate(groups)
            for topic in range(TOPICS_PER_GROUP)
            for partition in range(PARTITIONS)
        ]
        at = 0
        while not (stop.is_set() and self.acknowledged >= target):
            batch = [keys[(at + number) % len(keys)] for number in range(min(BATCH, len(keys)))]
            at += len(batch)
            wanted = {
                key: self.offsets.get(key, 0) + self.rng.randrange(1, STEP_MAX) for key in batch
            }
            commits = [
                OffsetCommit(group=group, topic=topic, partition=partition, offset=offset)
                for (group, topic, partition), offset in wanted.items()
            ]
            try:
                await client.commit_offsets(commits)
            except Unknown:
                self.unknown += len(commits)
                self.doubtful.update(wanted)
                continue
            for key, offset in wanted.items():
                self.offsets[key] = offset
                self.commits[key] = self.commits.get(key, 0) + 1
            self.acknowledged += len(commits)
            self.calls += 1
            async with self.progress:
                self.progress.notify_all()

    async def reached(self, count: int, committing: asyncio.Task[None]) -> None:
        """Wait until so many commits are acknowledged. Raises what `committing` (the task of `run`)
        raises, if it fails before that."""
        waiting = asyncio.create_task(self._acknowledged(count))
        await asyncio.wait((waiting, committing), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            await committing

    async def _acknowledged(self, count: int) -> None:
        async with self.progress:
            await self.progress.wait_for(lambda: self.acknowledged >= count)

    async def verify(self, client: Client) -> tuple[int, list[str]]:
        """Read every group back. Returns how many commits were verified, and what is wrong."""
        wrong: list[str] = []
        verified = 0
        groups = sorted({group for group, _, _ in self.offsets})
        pages = await asyncio.gather(*(client.fetch_offsets(group) for group in groups))
        found = {(row.group, row.topic, row.partition): row for page in pages for row in page}
        for key, offset in sorted(self.offsets.items()):
            row = found.get(key)
            if key in self.doubtful:
                continue
            if row is None or row.offset != offset:
                wrong.append(f"{key}: offset {row.offset if row else None}, acknowledged {offset}")
            elif row.commits != self.commits[key]:
                wrong.append(f"{key}: {row.commits} commits, acknowledged {self.commits[key]}")
            else:
                verified += self.commits[key]
        return verified, wrong

    def write_watermarks(self, path: Path, rng: Random) -> int:
        """The brokers' high watermarks, as a Parquet file for the report. Returns its rows.

        A partition's watermark is beyond every group's offset by what producers wrote since.
        """
        ends: dict[tuple[str, int], int] = {}
        for (_, topic, partition), offset in self.offsets.items():
            ends[topic, partition] = max(ends.get((topic, partition), 0), offset)
        rows = sorted(ends)
        table = pa.table(
            {
                "tenant": pa.array(["default"] * len(rows), pa.string()),
                "topic": pa.array([topic for topic, _ in rows], pa.string()),
                "partition": pa.array([partition for _, partition in rows], pa.int64()),
                "high_watermark": pa.array(
                    [ends[row] + rng.randrange(0, STEP_MAX) for row in rows], pa.int64()
                ),
            }
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)
        return len(rows)
