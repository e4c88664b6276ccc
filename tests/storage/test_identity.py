from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import shutil
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest

from state_machines.raft.messages import Configuration
from storage import identity
from storage.errors import BadIdentity, DirectoryInUse, ForeignData, UnsafeFileSystem
from storage.identity import Directory, Identity, find, lying, read
from tests.storage import child
from tests.storage.faults import flip

GROUP = "metadata-0"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "a root with a space"


def made(root: Path, **options: object) -> Path:
    """A directory that nobody holds."""
    with Directory.create(root, "c", GROUP, **options) as directory:  # type: ignore[arg-type]
        return directory.path


def opened(path: Path, **options: float) -> Directory:
    return Directory.open(path, "c", GROUP, **options)


def test_an_identity_is_made_with_the_directory(root: Path) -> None:
    members = Configuration((1, 2, 3))
    with Directory.create(root, "c", GROUP, founding=members) as directory:
        who = directory.identity
        assert 0 < who.replica < 1 << 63
        assert who == Identity("c", GROUP, who.replica, "founding", members, boot=1)
        assert directory.path == root / GROUP / f"{who.replica:016x}"
        assert read(directory.path) == who
        for path in (directory.log_path, directory.state_path, directory.staging_path):
            assert path.parent == directory.path


def test_every_directory_is_somebody_else(root: Path) -> None:
    assert len({made(root).name for _ in range(20)}) == 20
    made(root, replica=7)
    with pytest.raises(FileExistsError):
        made(root, replica=7)


def test_a_making_that_fails_leaves_nothing(root: Path) -> None:
    files = len(os.listdir("/proc/self/fd"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # stands for a full disk
    try:
        with pytest.raises(OSError, match="File too large"):
            made(root)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list((root / GROUP).iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == files


def test_only_the_owner_reads_it(root: Path) -> None:
    path = made(root)
    for each in (root, path.parent, path):
        assert stat.S_IMODE(each.stat().st_mode) == 0o700
    for name in ("LOCK", "identity.json"):
        assert stat.S_IMODE((path / name).stat().st_mode) == 0o600


def test_every_opening_is_another_life(root: Path) -> None:
    path = made(root)
    for boot in (2, 3, 4):
        with opened(path) as directory:
            assert directory.identity.boot == boot
    assert read(path).boot == 4


def test_status_and_founding_members_are_durable(root: Path) -> None:
    path = made(root)
    with opened(path) as directory:
        directory.update(founding=Configuration((5, 6), (), (7,)))
        directory.update(status="active")
        assert directory.update() == directory.identity
    assert read(path).status == "active"
    assert read(path).founding == Configuration((5, 6), (), (7,))
    with pytest.raises(AssertionError, match="closed"):
        directory.update(status="founding")


def test_retired_is_for_ever(root: Path) -> None:
    path = made(root)
    with opened(path) as directory:
        directory.update(status="retired")
    with opened(path) as directory:
        for status in ("active", "founding"):
            with pytest.raises(AssertionError, match="for ever"):
                directory.update(status=status)
        directory.update(status="retired")
    assert read(path).status == "retired"


def test_another_clusters_directory_is_refused_and_not_touched(root: Path) -> None:
    path = made(root)
    before = (path / "identity.json").read_bytes()
    with pytest.raises(ForeignData, match="cluster 'c', not to 'other'"):
        Directory.open(path, "other", GROUP)
    with pytest.raises(ForeignData, match="group 'metadata-0', not to 'mqtt-0'"):
        Directory.open(path, "c", "mqtt-0")
    with pytest.raises(ForeignData):
        find(root, "other", GROUP)
    assert (path / "identity.json").read_bytes() == before
    opened(path, wait_s=0).close()  # and the lock is free again


def test_a_directory_in_use_is_refused(root: Path) -> None:
    with Directory.create(root, "c", GROUP) as directory:
        with pytest.raises(DirectoryInUse, match=f"process {os.getpid()}"):
            opened(directory.path, wait_s=0)
        assert find(root, "c", GROUP) == []
    opened(directory.path, wait_s=0).close()


def test_a_directory_held_by_another_process_is_refused_until_that_is_killed(root: Path) -> None:
    path = made(root)
    holder = child.start("hold", path)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    before = (path / "identity.json").read_bytes()
    with pytest.raises(DirectoryInUse, match=f"process {holder.pid}: one directory"):
        opened(path, wait_s=0.1)
    assert find(root, "c", GROUP) == []
    assert (path / "identity.json").read_bytes() == before
    holder.kill()
    holder.communicate(timeout=30)
    with opened(path) as directory:  # the kernel gave the lock back
        assert directory.identity.boot == 3


def test_opening_waits_for_a_process_that_is_just_ending(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Directory.create(root, "c", GROUP)
    waiting = threading.Event()
    found: list[int] = []
    sleep = time.sleep

    def tried(seconds: float) -> None:
        waiting.set()
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", tried)

    def wait() -> None:
        with opened(held.path, wait_s=30) as directory:
            found.append(directory.identity.boot)

    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(30)
    assert not found
    held.close()
    held.close()
    thread.join(30)
    assert found == [2]


def test_find_lists_the_most_used_first_and_the_retired_last(root: Path) -> None:
    assert find(root, "c", GROUP) == []
    young, old, retired = made(root), made(root), made(root)
    for _ in range(3):
        opened(old).close()
    for _ in range(9):
        opened(retired).close()
    with opened(retired) as directory:
        directory.update(status="retired")
    (root / GROUP / "lost+found").mkdir()
    (root / GROUP / ("0" * 16)).mkdir()  # its making was cut short
    (root / GROUP / "notes.txt").write_text("x")
    shutil.copytree(old, root / GROUP / "as it was before")  # somebody's copy, of 16 letters
    for cluster in ("c", None):
        assert [each.path for each in find(root, cluster, GROUP)] == [old, young, retired]
    assert [each.identity for each in find(root, "c", GROUP)] == [
        read(each) for each in (old, young, retired)
    ]
    assert find(root, "c", "metadata-1") == []


def test_find_lists_those_that_took_part_before_those_that_never_did(root: Path) -> None:
    """A making that failed at its very end leaves a directory that its seat must not take."""
    active, founding = sorted((made(root), made(root)), reverse=True)
    with opened(active) as directory:
        directory.update(status="active")
    for _ in range(3):
        opened(founding).close()
    assert [each.path for each in find(root, "c", GROUP)] == [active, founding]


def test_two_that_look_at_once_hide_nothing_from_each_other(root: Path) -> None:
    path = made(root)
    lock = identity._lock(path, 0, fcntl.LOCK_SH)  # the other one is just looking
    assert [each.path for each in find(root, "c", GROUP)] == [path]
    os.close(lock)


def test_a_flipped_bit_anywhere_in_the_identity_is_found(root: Path) -> None:
    path = made(root, founding=Configuration((1, 2)))
    file = path / "identity.json"
    content, who = file.read_bytes(), read(path)
    for at in range(len(content)):  # every byte, each at another bit
        bit = at * 8 + at % 8
        file.write_bytes(flip(content, bit))
        try:
            # Blanks between the parts of the text say nothing; all else does.
            assert read(path) == who
        except BadIdentity as error:
            assert str(file) in str(error)  # noqa: PT017 - either is fine, a wrong identity is not


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"identity": {}, "crc": 0}',
        b'{"identity": 5, "crc": 1}',
        b"x" * 100_000,
    ],
)
def test_an_identity_that_cannot_be_read_is_refused(root: Path, content: bytes) -> None:
    path = made(root)
    (path / "identity.json").write_bytes(content)
    for use in (lambda: read(path), lambda: opened(path), lambda: find(root, "c", GROUP)):
        with pytest.raises(BadIdentity, match=r"identity\.json"):
            use()
    assert (path / "identity.json").read_bytes() == content


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("format", 2, "format 2; this version reads 1"),
        ("status", "asleep", "asleep"),
        ("replica", 5, "names replica 0000000000000005"),
        ("more", 1, "another form"),
        ("founding", [1], "another form"),
        ("founding", {"voters": 1}, "another form"),
    ],
)
def test_a_sound_checksum_over_nonsense_is_refused(
    root: Path, field: str, value: object, reason: str
) -> None:
    path = made(root)
    body = json.loads((path / "identity.json").read_bytes())["identity"]
    body[field] = value
    text = json.dumps({"identity": body, "crc": crc32(identity._canonical(body))})
    (path / "identity.json").write_text(text)
    with pytest.raises(BadIdentity, match=reason):
        read(path)


def test_a_missing_identity_or_directory_is_refused(root: Path) -> None:
    path = made(root)
    (path / "identity.json").unlink()
    with pytest.raises(BadIdentity, match="missing"):
        opened(path)
    with pytest.raises(BadIdentity, match="no such directory"):
        opened(root / GROUP / "none")
    assert find(root, "c", GROUP) == []


def test_a_directory_under_another_name_is_refused(root: Path) -> None:
    """A copy of a directory must not speak as the original."""
    path = made(root)
    moved = path.with_name(f"{12345:016x}")
    path.rename(moved)
    with pytest.raises(BadIdentity, match="names replica"):
        opened(moved)


@pytest.mark.parametrize("group", ["", "..", ".", "a/b", "../a", "a\0b", "a b", "x" * 129, "a\n"])
def test_a_groups_name_leads_nowhere_else(root: Path, group: str) -> None:
    for use in (
        lambda: Directory.create(root, "c", group),
        lambda: find(root, "c", group),
    ):
        with pytest.raises(ValueError, match="group's name"):
            use()
    assert not root.exists()


def test_a_directory_that_is_being_unmade_can_be_taken_by_nobody(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Path] = []
    removed = shutil.rmtree

    def full(path: Path) -> None:
        assert [each.path for each in lying(root, GROUP)] == [path]
        raise OSError(errno.ENOSPC, "full")

    def watched(path: Path) -> None:
        seen.append(path)
        with pytest.raises(DirectoryInUse):
            opened(path, wait_s=0)
        (path / "LOCK").unlink()  # whichever the first to go is
        assert find(root, "c", GROUP) == []
        removed(path)

    monkeypatch.setattr(identity, "_keep_name", full)
    monkeypatch.setattr(shutil, "rmtree", watched)
    with pytest.raises(OSError, match="full"):
        Directory.create(root, "c", GROUP)
    assert len(seen) == 1
    assert not seen[0].exists()


def test_an_identity_is_replaced_whole_or_not_at_all(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(root)
    before = read(path)

    def crash(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", crash)
    with pytest.raises(KeyboardInterrupt):
        opened(path)
    assert read(path) == before
    monkeypatch.undo()
    opened(path, wait_s=0).close()


def test_a_network_file_system_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = made(root)
    monkeypatch.setattr("storage.filesystem.file_system", lambda path, mounts: "nfs4")
    uses: list[Callable[[], object]] = [
        lambda: Directory.create(root / "new", "c", GROUP),
        lambda: opened(path),
    ]
    for use in uses:
        with pytest.raises(UnsafeFileSystem, match=r"\(nfs4\).*local disk"):
            use()
    assert not (root / "new").exists()
