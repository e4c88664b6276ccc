"""Bugs of what comes back from a backup, and of counts that are put right."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

RESTORING: Final = (
    Mutant(
        "an-offset-comes-back-without-its-group",
        "design 5.9",
        "state_machines.offset.restore",
        "    if group_before is None:\n",
        "    if group_before is None and row.offset < 0:\n",
    ),
    Mutant(
        "a-segment-that-its-shard-cannot-have-comes-back",
        "design 5.9",
        "state_machines.metadata.restore_shards",
        "    _check_sequence(shard, row.sequence, leaving)\n",
        "",
    ),
    Mutant(
        "the-next-segment-leaves-the-index-of-what-was-there",
        "design 5.9",
        "state_machines.metadata.segment",
        "put_segment(db, there, following)",
        "put_segment(db, None, following)",
    ),
    Mutant(
        "a-count-that-would-have-fallen-below-nothing-is-not-remembered",
        "law 8",
        "state_machines.repair",
        "    _remember(db, table.name, row_key.pack(key), field)\n    return 0\n",
        "    return 0\n",
    ),
    Mutant(
        "a-rehearsal-reaches-the-cluster-that-the-environment-names",
        "docs/operations.md: backups",
        "metaray.where",
        "    if address or data is not None:\n",
        "    if address:\n",
    ),
    Mutant(
        "up-starts-its-groups-on-another-cluster-than-it-made",
        "docs/operations.md: backups",
        "metaray.cli.cluster",
        "        address = cluster.address  # this one, whatever METARAY_ADDRESS says\n",
        "",
    ),
    Mutant(
        "nodes-are-started-that-are-too-few",
        "design 5.6",
        "metaray.cli.cluster",
        "        _check_room(data, local_nodes, wanted)\n",
        "",
    ),
    Mutant(
        "a-file-that-a-manifest-does-not-name-had-no-rows",
        "docs/pipeline.md: backup and restore",
        "metaray.backups",
        "        if lacking := {*wanted} - {*manifest.groups(name)}:\n",
        "        if lacking := {*wanted} - {*manifest.cut}:\n",
    ),
    Mutant(
        "a-column-of-any-bytes-ends-a-restore-with-a-stack",
        "law 18",
        "jobs.pages",
        "(OSError, pa.ArrowException, UnicodeDecodeError)",
        "(OSError, pa.ArrowException)",
    ),
    Mutant(
        "fewer-seats-than-a-majority-of-those-who-joined-later-are-started",
        "design 5.6",
        "actors.bootstrap",
        "            check_voters(group, voters_known(names), config)\n",
        "            pass\n",
    ),
    Mutant(
        "a-number-of-voters-that-nobody-chose-is-given-to-a-group",
        "docs/operations.md: settings",
        "actors.bootstrap",
        "    if voters and replicas != have and not config.replicas_chosen:\n",
        "    if voters and not have:\n",
    ),
    Mutant(
        "a-path-that-is-empty-is-where-the-command-runs",
        "law 18",
        "metaray.cli.paths",
        "    if not said:\n",
        "    if said is None:\n",
    ),
    Mutant(
        "verifiers-are-printed-as-they-go-by",
        "docs/decisions.md: mqtt",
        "metaray.cli.watch",
        "without_verifiers(to_json(change.row))",
        "to_json(change.row)",
    ),
    Mutant(
        "ray-answers-signals-while-it-is-joined",
        "docs/operations.md: on the terminal",
        "metaray.cli.door",
        "    with ending.joining():\n",
        "    if ending:\n",
    ),
)
