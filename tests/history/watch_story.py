"""Watchers of a real machine's changes, who poll the real recent past of a replica."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from typing import Final

from actors.wanted import Wanted
from actors.watches import History
from state_machines.errors import Compacted
from state_machines.metadata.kv import KV, DeleteKv, PutKv
from state_machines.wire import api_pb2 as api
from tests.history.watch import Compaction, Delivery, Event, check, delivery, event
from tests.machine.alone import Group

ENTRIES: Final = 60
WATCHERS: Final = 4
PAIRS: Final = Wanted.of_table(KV.name)

Watch = list[Delivery | Compaction]


class Story:
    """A group, its recent past, and watchers who poll it whenever they like."""

    def __init__(self, seed: int) -> None:
        self.luck = Random(seed)
        self.group = Group("metadata")
        self.past = History(self.group.index)
        self.committed: list[Event] = []
        self.watches: list[Watch] = [[] for _ in range(WATCHERS)]
        self._at = [self.group.index] * WATCHERS

    def run(self) -> None:
        for number in range(ENTRIES):
            self.entry(number)
            for watcher in range(WATCHERS):
                if self.luck.random() < 0.4:
                    self.poll(watcher)

    def entry(self, number: int) -> None:
        """A few pairs change, now and then none."""
        luck = self.luck
        keys = [luck.choice("abc") for _ in range(luck.randrange(4))]
        self.group.together(
            *(
                DeleteKv(key=key) if luck.random() < 0.3 else PutKv(key=key, value=b"%d" % number)
                for key in keys or ["x"]
            )
        )
        changes = self.group.machine.take_changes()
        self.committed += [
            event(self.group.index, KV, key, row or b"")
            for table, key, row in changes
            if table == KV.name
        ]
        self.past.add(self.group.index, changes)
        self.past.applied(self.group.index)

    def poll(self, watcher: int) -> None:
        """Ask for what came after, go back a little, or find that it is gone."""
        after = self._at[watcher]
        if self.luck.random() < 0.1:
            after = max(0, after - self.luck.randrange(5))
        try:
            found, upto = self.past.after(after, PAIRS, self.luck.randrange(1, 5))
        except Compacted:
            self.watches[watcher].append(Compaction(after))
            self._at[watcher] = self.past.revision
            self.watches.append(self.watches[watcher])
            self.watches[watcher] = []  # whoever was refused begins anew
            return
        reply = api.Reply(revision=max(upto, after), changes=found)
        self.watches[watcher].append(delivery(after, reply, KV))
        self._at[watcher] = reply.revision


def story(seed: int) -> Story:
    """One that has happened."""
    told = Story(seed)
    told.run()
    return told


def deliveries(watch: Sequence[Delivery | Compaction]) -> list[Delivery]:
    """Without what was refused."""
    return [each for each in watch if isinstance(each, Delivery)]


def watch_stories(seeds: Iterable[int]) -> Counter[str]:
    """Everyone is told everything, and if not, it is noticed: one event is taken out of each."""
    figures: Counter[str] = Counter()
    for seed in seeds:
        told, luck = story(seed), Random(seed)
        found = check(told.watches, told.committed)
        assert found == [], f"seed {seed}: {found}"
        figures["watches"] += len(told.watches)
        figures["watch_events"] += sum(
            len(each.events) for watch in told.watches for each in deliveries(watch)
        )
        for watch in told.watches:
            full = [each for each in deliveries(watch) if each.events]
            if not full:
                continue
            each = luck.choice(full)
            place, gone = watch.index(each), luck.randrange(len(each.events))
            events = each.events[:gone] + each.events[gone + 1 :]
            watch[place] = Delivery(each.after, each.upto, events)
            assert check([watch], told.committed), f"seed {seed}: {each} without its {gone}th"
            watch[place] = each
            figures["watch_breaches"] += 1
    return figures
