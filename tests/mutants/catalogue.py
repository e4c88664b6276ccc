"""All the bugs, by name."""

from __future__ import annotations

from typing import Final

from tests.mutants import (
    actors,
    clients,
    clocks,
    commit,
    controller,
    disk,
    elections,
    entries,
    fleet,
    had,
    journal,
    membership,
    memory,
    mqtt,
    offsets,
    pipeline,
    promises,
    reads,
    restoring,
    sessions,
    several,
    snapshots,
    stalls,
    state,
    transport,
    walls,
)
from tests.mutants.mutant import Mutant

AREAS: Final[dict[str, tuple[Mutant, ...]]] = {
    "Elections": elections.ELECTIONS,
    "What is promised, and on which disk": promises.PROMISES,
    "Commit": commit.COMMIT,
    "Entries": entries.ENTRIES,
    "Membership and transfer": membership.MEMBERSHIP,
    "Reads and watches": reads.READS,
    "Snapshots": snapshots.SNAPSHOTS,
    "While something hangs": stalls.STALLS,
    "The disk": disk.DISK,
    "The journal": journal.JOURNAL,
    "The state": state.STATE,
    "Rows in memory, views and copies": memory.MEMORY,
    "Consumer offsets": offsets.OFFSETS,
    "Sessions": sessions.SESSIONS,
    "What MQTT promises": mqtt.MQTT,
    "What comes back": restoring.RESTORING,
    "Exactly once": clients.CLIENTS,
    "The replica": actors.ACTORS,
    "The transport": transport.TRANSPORT,
    "The walls": walls.WALLS,
    "Clocks": clocks.CLOCKS,
    "Several groups": several.SEVERAL,
    "The fleet": fleet.FLEET,
    "The controller": controller.CONTROLLER,
    "The pipeline": pipeline.PIPELINE,
    "What this project had": had.HAD,
}

MUTANTS: Final[dict[str, Mutant]] = {
    mutant.name: mutant for area in AREAS.values() for mutant in area
}
