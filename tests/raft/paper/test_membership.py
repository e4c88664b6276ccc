"""Ongaro's dissertation, chapter 4: changing the members while the group works."""

from __future__ import annotations

from itertools import chain, combinations
from typing import Any

import pytest

from state_machines.errors import Conflict, Invalid
from state_machines.raft import (
    Append,
    AppendReply,
    Change,
    Configuration,
    Entry,
    EntryKind,
    RequestVote,
    VoteReply,
)
from state_machines.raft.quorum import has_quorum
from tests.raft.paper.rig import Table, log_of, replica, turn

UNTESTED = {
    "Thesis 4 ¶1": "what is done without the chapter; the scripts wiped_replica_* show why a "
    "server that was replaced may not return under its id",
    "Thesis 4 ¶2": "announces the chapter",
    "Thesis 4.1 ¶2": "changes of one server at a time; here voters change by joint consensus (4.3)",
    "Thesis 4.2 ¶1": "announces the section",
    "Thesis 4.2.1 ¶5": "an algorithm in rounds; here a bound on the gap decides (see ¶3)",
    "Thesis 4.2.3 ¶4": "an argument that comparing logs cannot be enough; what is, follows",
    "Thesis 4.2.4 ¶1": "the assumptions of the items",
    "Thesis 4.2.4 ¶2": "the conclusion of the items",
    "Thesis 4.3 ¶6": "says that every comparison has to count both majorities: tests/properties",
    "Thesis 4.4 ¶1": "how operators call it: the controller does (tests/actors/test_planners.py)",
    "Thesis 4.4 ¶2": "a policy for failed servers: the controller (tests/actors/test_planners.py)",
    "Thesis 4.4 ¶5": "announces chapter 6",
}


def subsets(members: tuple[int, ...]) -> list[set[int]]:
    sizes = range(len(members) + 1)
    return [set(each) for each in chain(*(combinations(members, size) for size in sizes))]


def quorums(configuration: Configuration) -> list[set[int]]:
    return [each for each in subsets(configuration.members) if has_quorum(configuration, each)]


def meet(one: Configuration, other: Configuration) -> bool:
    """Whether no two quorums of these can miss each other."""
    return all(left & right for left in quorums(one) for right in quorums(other))


def with_learners(*learners: int, size: int = 3, settings: str = "") -> Table:
    """Replica 1 leads voters 1..size and these learners, all of them up to date."""
    table = Table(f"cluster {size} {settings}", "quietly lead 1")
    for number in learners:
        table.do(f"replica {number}", f"quietly change 1 +l{number}", "quietly settle")
    return table


# 4.1 Safety


def test_never_two_majorities() -> None:
    """Thesis 4.1 ¶1: from 3 to 5 at once two leaders could be elected; by way of both they
    cannot."""
    old, new = Configuration(voters=(1, 2, 3)), Configuration(voters=(1, 2, 3, 4, 5))
    joint = Configuration(voters=new.voters, outgoing=old.voters)
    assert not meet(old, new)
    assert meet(old, joint)
    assert meet(joint, joint)
    assert meet(joint, new)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_one_more_or_less_always_overlaps(size: int) -> None:
    """Thesis 4.1 ¶3: majorities before and after adding or removing one share a member."""
    members = tuple(range(1, size + 2))
    more, less = Configuration(voters=members), Configuration(voters=members[:-1])
    assert meet(more, less)


def test_a_configuration_is_an_entry_among_others() -> None:
    """Thesis 4.1 ¶4: configurations are entries, and clients are served while they replicate."""
    table = with_learners(4)
    table.do("change 1 +v4", "propose 1 a", "turn 1", "propose 1 b")
    seen = table.do("settle")
    assert [line for line in seen if line.startswith("1 applies")] == [
        "1 applies 3@1(voters [1, 2, 3, 4] and [1, 2, 3])",
        "1 applies 4@1=a",
        "1 applies 5@1=b",
        "1 applies 6@1(voters [1, 2, 3, 4])",
    ]


def test_a_configuration_is_in_force_from_its_append() -> None:
    """Thesis 4.1 ¶5: each takes a configuration up when it stores it, and it decides about its own
    commitment."""
    table = with_learners(4, 5)
    table.do("change 1 +v4 +v5", "quietly turn 1")
    assert table.raft(1).configuration == Configuration((1, 2, 3, 4, 5), (1, 2, 3))
    table.do("deliver 1 2")
    assert table.raft(2).configuration == table.raft(1).configuration
    assert table.raft(2).commit < table.raft(2).configuration_index
    table.do("quietly turn 2", "deliver 2 1")
    assert table.raft(1).commit == 3, "two of three old voters, but only two of five new ones"
    table.do("deliver 1 4", "quietly turn 4", "deliver 4 1")
    assert table.raft(1).commit == 4


def test_a_change_is_complete_when_it_is_committed() -> None:
    """Thesis 4.1 ¶6: then it is acknowledged, who was removed may be shut down, and another change
    may begin."""
    table = Table("cluster 3", "quietly lead 1", "change 1 -3", "quietly turn 1")
    raft = table.raft(1)
    assert raft.commit < raft.configuration_index
    with pytest.raises(Conflict):
        raft.change(Change(remove=(2,)))
    table.do("quietly settle", "crash 3")
    assert raft.commit == raft.configuration_index
    table.do("propose 1 a", "quietly settle")
    assert raft.commit == raft.last_index
    table.do("change 1 -2", "quietly settle")
    assert raft.configuration == Configuration(voters=(1,))


def test_the_latest_configuration_counts_and_may_be_undone() -> None:
    """Thesis 4.1 ¶7: committed or not, the latest in the log is in force; when its entry is
    removed the one before it is again."""
    founders = Configuration(voters=(1, 2, 3))
    first, second = Configuration((1, 2, 3, 4), (1, 2, 3)), Configuration((1, 2, 3, 4))
    raft = replica(id=2)
    raft.step(
        Append(
            *(1, 2, 1, 0, 0, 0),
            (
                Entry(1, 1),
                Entry(1, 2, b"", EntryKind.CONFIGURATION, first),
                Entry(1, 3, b"", EntryKind.CONFIGURATION, second),
            ),
        )
    )
    assert (raft.configuration, raft.commit) == (second, 0)
    raft.step(Append(3, 2, 2, 2, 1, 0, (Entry(2, 3),)))
    assert raft.configuration == first
    raft.step(Append(3, 2, 2, 1, 1, 0, (Entry(2, 2),)))
    assert raft.configuration == founders


def test_requests_are_taken_from_those_it_does_not_know() -> None:
    """Thesis 4.1 ¶8: a server takes entries from a leader, and votes for a candidate, that is not
    in its own configuration: it is the caller's that counts."""
    raft = replica(id=2)
    raft.step(Append(9, 2, 1, 0, 0, 0, tuple(log_of(1))))
    assert turn(raft) == [AppendReply(2, 9, 1, 1)]
    raft.step(RequestVote(8, 2, 2, 1, 1))
    assert turn(raft) == [VoteReply(2, 8, 2, granted=True)]


# 4.2.1 Catching up new servers


def test_nobody_votes_with_an_empty_log() -> None:
    """Thesis 4.2.1 ¶1: a voter that has nothing yet would be in every majority and help none, so
    there is no way to make one at once."""
    table = Table("cluster 3", "quietly lead 1", "replica 4")
    with pytest.raises(Invalid, match="learner first"):
        table.raft(1).change(Change(add_voters=(4,)))


def test_a_learner_gets_entries_and_has_no_say() -> None:
    """Thesis 4.2.1 ¶2: a new server is first one without a vote, which is sent the log and counts
    in no majority, neither of votes nor of entries."""
    table = with_learners(4, 5)
    table.do("crash 2", "crash 3", "propose 1 a", "quietly settle")
    assert table.raft(4).last_index == table.raft(5).last_index == table.raft(1).last_index
    assert table.raft(1).commit == table.raft(1).last_index - 1
    table.do("tick 4 100", "tick 5 100")
    assert {table.raft(number).role.name for number in (4, 5)} == {"follower"}


def test_a_learner_is_promoted_when_it_has_caught_up() -> None:
    """Thesis 4.2.1 ¶3: the leader decides that, so that the change costs no availability."""
    table = with_learners(4, settings="promotion_gap_entries=2")
    table.do("cut 4", "propose 1 a b c", "quietly settle")
    promote = Change(add_voters=(4,))
    last = table.raft(1).last_index
    with pytest.raises(Conflict, match="4 has not caught up"):
        table.raft(1).change(promote)
    assert table.raft(1).last_index == last
    table.do("heal", "quietly tick 1 2", "quietly settle")
    table.raft(1).change(promote)
    table.do("quietly settle")
    assert table.raft(1).configuration == Configuration(voters=(1, 2, 3, 4))


def test_a_server_that_is_not_there_is_never_made_a_voter() -> None:
    """Thesis 4.2.1 ¶4: a change to a server that is down or was mistyped is given up with an
    error, and can be taken back."""
    table = Table("cluster 3", "quietly lead 1", "change 1 +l99", "quietly settle")
    for _ in range(20):
        table.do("quietly tick 1 2", "quietly settle")
        with pytest.raises(Conflict, match="99 has not caught up"):
            table.raft(1).change(Change(add_voters=(99,)))
    table.do("change 1 -99", "propose 1 a", "quietly settle")
    assert table.raft(1).configuration == Configuration(voters=(1, 2, 3))
    assert table.raft(1).commit == table.raft(1).last_index


def test_an_empty_log_is_found_in_one_refusal() -> None:
    """Thesis 4.2.1 ¶6: the answer says how long the log is, so the leader need not go back entry by
    entry."""
    table = Table("cluster 1", "quietly lead 1")
    for number in range(300):
        table.do(f"quietly propose 1 {number}")
    table.do("quietly settle", "replica 2", "quietly change 1 +l2")
    refusals = [line for line in table.do("settle") if "2 to 1: rejects" in line]
    assert len(refusals) == 1
    assert table.raft(2).last_index == table.raft(1).last_index == 302


# 4.2.2 Removing the current leader


def test_a_leader_that_is_removed_steps_down() -> None:
    """Thesis 4.2.2 ¶1: a leader asked to remove itself has to step down at some point; another
    then leads."""
    table = with_learners(4)  # which has no vote, and would be the wrong heir
    table.do("change 1 -1")
    for _ in range(2):
        table.do("quietly turn 1")
        for peer in (4, 2, 3):
            table.do(f"quietly deliver 1 {peer}", f"quietly turn {peer}")
            table.do(f"quietly deliver {peer} 1")
    assert table.raft(1).role.name == "follower"
    table.do("quietly settle")
    assert table.leader() in (2, 3)


def test_a_leader_carries_out_its_own_removal() -> None:
    """Thesis 4.2.2 ¶2: it goes on leading while it manages a configuration it is no member of."""
    table = Table("cluster 4", "quietly lead 1", "change 1 -1", "quietly turn 1")
    for peer in (2, 3):
        table.do(f"quietly deliver 1 {peer}", f"quietly turn {peer}", f"quietly deliver {peer} 1")
    raft = table.raft(1)
    assert raft.configuration == Configuration(voters=(2, 3, 4))
    assert raft.role.name == "leader"
    table.do("quietly turn 1")
    table.do("quietly deliver 1 2", "quietly turn 2", "quietly deliver 2 1")
    assert raft.role.name == "leader"
    table.do("quietly deliver 1 3", "quietly turn 3", "quietly deliver 3 1")
    assert raft.role.name == "follower"


def test_of_two_the_removed_one_may_have_to_lead_again() -> None:
    """Thesis 4.2.2 ¶3: it steps down when its removal is committed, not before: of a group of two
    only the removed one may have the entry, and the other cannot win without its vote."""
    table = Table("cluster 2", "quietly lead 1", "change 1 -1", "quietly turn 1")
    table.do("quietly lose 1 2", "crash 1", "restart 1")
    table.patience(2)
    table.do("quietly campaign 2", "quietly settle")
    assert table.leader() == 0
    table.do("quietly timeout 1", "quietly settle", "quietly tick 1 2", "quietly settle")
    assert table.raft(2).configuration == Configuration(voters=(2,))
    assert table.raft(2).commit >= table.raft(2).configuration_index
    table.do("quietly timeout 2", "quietly settle")
    assert table.leader() == 2


def test_a_removed_leader_does_not_count_itself() -> None:
    """Thesis 4.2.2 ¶4: it replicates entries and is in no majority, neither for entries nor, when
    it has to stand again, for votes."""
    table = Table("cluster 4", "quietly lead 1", "change 1 -1", "quietly turn 1")
    for peer in (2, 3):
        table.do(f"quietly deliver 1 {peer}", f"quietly turn {peer}", f"quietly deliver {peer} 1")
    raft = table.raft(1)
    table.do("quietly turn 1", "quietly deliver 1 2", "quietly turn 2", "quietly deliver 2 1")
    assert raft.durable_index == raft.last_index
    assert raft.commit == raft.last_index - 1, "of 2, 3 and 4 only 2 has it"
    table.do("crash 1", "restart 1", "campaign 1")
    again = table.raft(1)
    assert again.role.name == "pre-candidate", "it may still be needed"
    again.step(VoteReply(2, 1, 2, granted=True, pre=True))
    assert again.role.name == "pre-candidate", "its own consent and one of three are no majority"
    again.step(VoteReply(3, 1, 2, granted=True, pre=True))
    assert again.role.name == "candidate"


# 4.2.3 Disruptive servers


def removed_unawares(settings: str) -> Table:
    """4 voters of which 4 was removed, and did not hear of it."""
    table = Table(f"cluster 4 {settings}", "quietly lead 1", "cut 4", "change 1 -4")
    table.do("quietly settle", "heal")
    return table


def test_without_a_remedy_a_removed_server_disrupts_the_rest() -> None:
    """Thesis 4.2.3 ¶1: it hears no heartbeats, does not know that it is out, and its higher terms
    end one leadership after the other."""
    table = removed_unawares("pre_vote=0 check_quorum=0")
    table.do("quietly timeout 4", "quietly turn 4", "deliver 4 1")
    assert table.raft(1).role.name == "follower"
    assert table.raft(1).term == 2


def test_a_hopeless_candidate_does_not_raise_its_term() -> None:
    """Thesis 4.2.3 ¶2: the pre-vote asks first whether the log is up to date enough to win."""
    table = removed_unawares("check_quorum=0")
    for _ in range(5):
        table.do("quietly timeout 4", "quietly settle")
    assert {table.raft(number).term for number in (1, 2, 3, 4)} == {1}
    assert table.leader() == 1


def test_an_up_to_date_candidate_does_not_disrupt_either() -> None:
    """Thesis 4.2.3 ¶3: while the entry that removes it is only at the leader, the log of the
    removed one is as good as any (figure 4.7), and still the leader stays."""
    table = Table("cluster 4", "quietly lead 4", "change 4 -1", "quietly turn 4")
    for peer in (1, 2, 3):
        table.do(f"lose 4 {peer}")
    for _ in range(3):
        table.do("quietly timeout 1", "quietly turn 1")
        for peer in (2, 3, 4):
            table.do(f"quietly deliver 1 {peer}", f"quietly turn {peer}", f"deliver {peer} 1")
    assert (table.leader(), table.raft(4).term) == (4, 1)


@pytest.mark.parametrize(("silence", "granted"), [(0, False), (9, False), (10, True)])
def test_who_hears_a_leader_takes_neither_term_nor_candidate(silence: int, granted: bool) -> None:
    """Thesis 4.2.3 ¶5: within the least election timeout of hearing a leader a server neither
    updates its term nor votes; afterwards it does."""
    table = Table("cluster 3", "quietly lead 1", f"tick 2 {silence}")
    raft = table.raft(2)
    raft.step(RequestVote(3, 2, 9, 50, 8))
    assert raft.term == (9 if granted else 1)
    replies = [word for word in turn(raft) if isinstance(word, VoteReply)]
    assert replies == ([VoteReply(2, 3, 9, granted=True)] if granted else [])


def test_a_candidate_that_the_leader_asked_for_may_disrupt() -> None:
    """Thesis 4.2.3 ¶6: a transfer's request for votes says so, and is processed although a leader
    is heard."""
    raft = Table("cluster 3", "quietly lead 1").raft(2)
    raft.step(RequestVote(3, 2, 2, 1, 1, transfer=True))
    assert VoteReply(2, 3, 2, granted=True) in turn(raft)


# 4.2.4 Availability argument

STEPS = 14


def changing(steps: int, change: str = "+v4 +v5 -2 -3") -> Table:
    """Replica 1 leads a change from voters 1, 2, 3 to 1, 4, 5, and so many deliveries of it have
    been made."""
    table = with_learners(4, 5)
    table.do(f"change 1 {change}")
    made = 0
    while made < steps:
        for number in (1, 2, 3, 4, 5):
            table.do(f"quietly turn {number}")
        waiting = [link for link, words in sorted(table.links.items()) if words]
        if not waiting:
            break
        for sender, receiver in waiting:
            if made < steps:
                table.do(f"quietly deliver {sender} {receiver} 1")
                made += 1
    return table


@pytest.mark.parametrize("steps", range(STEPS))
def test_a_leader_can_be_elected_at_every_step(steps: int) -> None:
    """Thesis 4.2.4 item 1: wherever in a change its leader dies, the others elect one of them.

    One of the old voters and one of the new is left beside the dead one: both majorities are there.
    """
    table = changing(steps)
    table.do("crash 1")
    for _ in range(12):
        for number in (2, 3, 4, 5):
            table.do(f"quietly tick {number} 5", "quietly settle")
    assert table.leader() in (2, 3, 4, 5)
    raft = table.raft(table.leader())
    assert not raft.configuration.joint
    assert raft.commit == raft.last_index


def test_a_leader_is_maintained() -> None:
    """Thesis 4.2.4 item 2: while its heartbeats get through nobody unseats it, whoever asks."""
    table = changing(5)
    for _ in range(4):
        for number in (2, 3, 4, 5):
            table.do(f"quietly campaign {number}", "quietly settle", "quietly tick 1 2")
            table.do("quietly settle")
    assert (table.leader(), table.raft(1).term) == (1, 1)


@pytest.mark.parametrize("steps", range(STEPS))
def test_clients_are_served_at_every_step(steps: int) -> None:
    """Thesis 4.2.4 item 3: at every step the leader appends what clients ask, and commits it."""
    table = changing(steps)
    index = table.raft(1).propose(b"asked meanwhile")
    table.do("quietly settle")
    assert table.raft(1).commit >= index


@pytest.mark.parametrize("change", ["+v4 +v5 -2 -3", "+v4 +v5 -1 -2 -3", "-2", "+v4"])
def test_a_change_is_completed_by_itself(change: str) -> None:
    """Thesis 4.2.4 item 4: the leaders complete it, stepping down where they are not in it."""
    table = changing(0, change)
    table.do("quietly settle")
    for number in (1, 2, 3, 4, 5):
        table.do(f"quietly tick {number} 5", "quietly settle")
    raft = table.raft(table.leader())
    assert not raft.configuration.joint
    assert raft.id in raft.configuration.voters
    assert raft.commit == raft.last_index


# 4.3 Arbitrary configuration changes using joint consensus


def test_all_members_can_be_replaced_at_once() -> None:
    """Thesis 4.3 ¶1: any configuration can be changed to any other in one go."""
    table = with_learners(4, 5, 6)
    table.do("propose 1 a", "change 1 +v4 +v5 +v6 -1 -2 -3", "quietly settle")
    assert table.leader() in (4, 5, 6)
    raft = table.raft(table.leader())
    assert raft.configuration == Configuration(voters=(4, 5, 6))
    for number in (1, 2, 3):
        table.do(f"crash {number}")
    table.do(f"propose {raft.id} b", "quietly settle")
    assert raft.commit == raft.last_index


@pytest.mark.parametrize("old", range(4))
@pytest.mark.parametrize("new", [0, 3, 4, 5, 9])
def test_both_majorities_are_needed(old: int, new: int) -> None:
    """Thesis 4.3 ¶2: from 3 to 9 others, it takes 2 of the 3 and 5 of the 9."""
    joint = Configuration(voters=tuple(range(11, 20)), outgoing=(1, 2, 3))
    present = {*range(1, 1 + old), *range(11, 11 + new)}
    assert has_quorum(joint, present) == (old >= 2 and new >= 5)


def test_entries_go_to_both_and_either_may_lead() -> None:
    """Thesis 4.3 ¶2: entries are replicated to all of both configurations, and any of them may
    lead."""
    for heir in (2, 4):
        table = with_learners(4, 5)
        table.do("change 1 +v4 +v5 -2 -3", "propose 1 a", "quietly turn 1")
        last = table.raft(1).last_index
        for peer in (2, 3, 4, 5):
            table.do(f"quietly deliver 1 {peer}", f"quietly turn {peer}")
            assert table.raft(peer).last_index == last
        table.do("crash 1")
        table.patience(2, 3, 4, 5)
        table.do(f"quietly campaign {heir}")
        for _ in range(2):
            table.do(f"quietly turn {heir}")
            for peer in (2, 3, 4, 5):
                table.do(f"quietly deliver {heir} {peer}", f"quietly turn {peer}")
                table.do(f"quietly deliver {peer} {heir}")
        assert table.leader() == heir


def test_the_new_voters_decide_nothing_alone() -> None:
    """Thesis 4.3 ¶3: if the leader dies while the joint entry is on its way, a leader comes from
    the old configuration or from both; the new voters alone elect nobody."""
    table = with_learners(4, 5)
    table.do("change 1 +v4 +v5 -2 -3", "quietly turn 1")
    for peer in (4, 5):
        table.do(f"quietly deliver 1 {peer}", f"quietly turn {peer}")
    table.do("cut 2 3")
    table.do("crash 1")
    for _ in range(4):
        table.do("quietly timeout 4", "quietly settle", "quietly timeout 5", "quietly settle")
    assert table.leader() == 0
    table.do("heal", "cut 4 5")  # the old ones have not seen the entry
    table.patience(2, 3)
    table.do("quietly campaign 2", "quietly settle")
    assert table.leader() == 2
    assert table.raft(2).configuration == Configuration(voters=(1, 2, 3), learners=(4, 5))


def test_after_the_joint_entry_only_who_has_it_leads() -> None:
    """Thesis 4.3 ¶4: once it is committed neither side decides alone, only who has it is elected,
    and the leader makes the next entry by itself."""
    table = with_learners(4, 5)
    table.do("change 1 +v4 +v5 -2 -3", "quietly turn 1")
    for peer in (2, 4):
        table.do(f"quietly deliver 1 {peer}", f"quietly turn {peer}", f"quietly deliver {peer} 1")
    raft = table.raft(1)
    joint_index = raft.last_index - 1
    assert raft.commit == joint_index
    assert raft.configuration == Configuration(voters=(1, 4, 5))
    table.do("crash 1")
    table.patience(2, 3, 4, 5)
    for without in (3, 5):
        table.do(f"quietly campaign {without}", "quietly settle")
        assert table.leader() not in (3, 5)


@pytest.mark.parametrize("steps", range(0, STEPS, 2))
def test_one_change_at_a_time(steps: int) -> None:
    """Thesis 4.3 ¶5: while the latest configuration is joint or not committed, another change is
    refused; later it may be made."""
    table = changing(steps)
    raft = table.raft(1)
    another: dict[str, Any] = {"add_learners": (7,)}
    if raft.configuration.joint or raft.commit < raft.configuration_index:
        with pytest.raises(Conflict, match="under way"):
            raft.change(Change(**another))
    table.do("quietly settle")
    raft.change(Change(**another))
    assert raft.configuration.learners == (7,)


# 4.4 System integration


@pytest.mark.parametrize("down", [1, 2, 3, 4])
def test_a_server_is_replaced_with_any_one_down(down: int) -> None:
    """Thesis 4.4 ¶3: add before removing, so that one failure is borne at all times; one joint
    change does both."""
    table = with_learners(4)
    table.do("change 1 +v4 -3", f"crash {down}")
    for _ in range(12):
        for number in {1, 2, 3, 4} - {down}:
            table.do(f"quietly tick {number} 5", "quietly settle")
    raft = table.raft(table.leader())
    index = raft.propose(b"a")
    table.do("quietly settle")
    assert raft.commit >= index
    assert not raft.configuration.joint


def test_a_group_begins_with_one_and_grows() -> None:
    """Thesis 4.4 ¶4: the first server starts with a configuration that lists only itself, the
    others with nothing: they learn who is a member by being made one."""
    table = with_learners(2, 3, size=1)
    table.do("change 1 +v2 +v3", "quietly settle", "quietly tick 1 2", "quietly settle")
    everybody = Configuration(voters=(1, 2, 3))
    assert [table.raft(number).configuration for number in (1, 2, 3)] == [everybody] * 3
