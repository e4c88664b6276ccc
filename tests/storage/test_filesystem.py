from __future__ import annotations

import errno
import logging
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from metaray.alone import alone
from storage import filesystem
from storage.errors import UnsafeFileSystem
from tests.storage.faults import open_files

MOUNTS = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:21 / /proc rw - proc proc rw
24 22 0:30 / /dev/shm rw - tmpfs tmpfs rw
25 22 0:31 / /mnt/nfs rw shared:5 master:2 - nfs4 server:/x rw,vers=4.2
26 25 254:1 / /mnt/nfs/local rw - xfs /dev/vdb rw
27 22 0:32 / /mnt/with\040blank rw - fuse.sshfs user@host: rw
28 22 0:33 / /home/someone/.overlay rw - fuse.fuse-overlayfs fuse-overlayfs rw
29 22 0:34 / /twice rw - ext4 /dev/vdc rw
30 29 0:35 / /twice rw - cifs //server/share rw
31 22 0:36 / /container rw - overlay overlay rw,lowerdir=/a
32 22 0:37 / /vm rw - 9p share rw
33 22 0:38 / /plain rw - fuse /dev/fuse rw
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(MOUNTS.strip() + "\n")
    return path


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/data/metaray", "ext4"),
        ("/mnt/nfs", "nfs4"),
        ("/mnt/nfs/a/b", "nfs4"),
        ("/mnt/nfsother", "ext4"),
        ("/mnt/nfs/local/a", "xfs"),
        ("/mnt/with blank/a", "fuse.sshfs"),
        ("/twice/a", "cifs"),
        ("/container/data", "overlay"),
        ("/home/someone/.overlay/a", "fuse.fuse-overlayfs"),
    ],
)
def test_the_mount_that_holds_a_path(mounts: Path, path: str, kind: str) -> None:
    assert filesystem.file_system(Path(path), mounts) == kind


@pytest.mark.parametrize("path", ["/mnt/nfs/a", "/mnt/with blank/a", "/twice", "/vm/a", "/plain"])
def test_network_and_user_space_file_systems_are_refused(mounts: Path, path: str) -> None:
    with pytest.raises(UnsafeFileSystem, match="Choose a data directory on a local disk"):
        filesystem.check(Path(path), mounts)


@pytest.mark.parametrize("path", ["/a", "/mnt/nfs/local", "/container/a", "/home/someone/.overlay"])
def test_local_ones_and_containers_are_fine(mounts: Path, path: str) -> None:
    filesystem.check(Path(path), mounts)


def test_a_link_is_where_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "mounted").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "mounted")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"1 1 0:1 / {tmp_path}/mounted rw - nfs server:/x rw\n")
    assert filesystem.file_system(tmp_path / "link" / "a", mounts) == "nfs"


def test_a_mount_whose_name_is_not_utf_8_is_read_past(mounts: Path) -> None:
    mounts.write_bytes(b"1 1 0:1 / /mnt/\xff rw - nfs server:/x rw\n" + mounts.read_bytes())
    assert filesystem.file_system(Path("/mnt/nfs/local/a"), mounts) == "xfs"
    assert filesystem.file_system(Path(os.fsdecode(b"/mnt/\xff/a")), mounts) == "nfs"


def test_memory_is_warned_of(mounts: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "metaray.storage"):
        assert filesystem.check(Path("/dev/shm/a"), mounts) == "tmpfs"
    assert "will not survive a reboot" in caplog.text


def test_a_system_without_mountinfo_is_not_refused(tmp_path: Path) -> None:
    assert filesystem.check(tmp_path, tmp_path / "none") == ""


def test_this_machine_is_fine(tmp_path: Path) -> None:
    assert filesystem.check(tmp_path / "not" / "yet" / "there")


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path, opened = tmp_path / "file", open_files()
    (tmp_path / "file.new").write_bytes(b"what a crash has left")
    (tmp_path / "file.new").chmod(0o600)
    for content in (b"", b"x" * 100_000, b"short"):
        filesystem.replace(path, content)
        assert path.read_bytes() == content
        assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert open_files() == opened


def test_a_file_that_is_written_in_parts_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda handle, data: write(handle, data[:3]))
    filesystem.replace(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EINVAL, errno.EIO])
def test_a_history_or_a_backup_may_lie_where_its_name_cannot_be_synced(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(directory: Path) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(filesystem, "sync", fails)
    with pytest.raises(OSError, match=os.strerror(number)):
        filesystem.make(tmp_path / "replica")
    with ExitStack() as stack:
        if number == errno.EIO:
            stack.enter_context(pytest.raises(OSError, match=os.strerror(number)))
        with alone(tmp_path / "backups" / "monday"):
            assert (tmp_path / "backups" / "monday" / "LOCK").exists()


def test_a_name_that_was_made_or_removed_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    fsync, opened = os.fsync, open_files()

    def noted(handle: int) -> None:
        fsync(handle)
        synced.append(Path(f"/proc/self/fd/{handle}").readlink())

    monkeypatch.setattr(os, "fsync", noted)
    path = tmp_path / "a" / "b" / "c"
    filesystem.make(path)
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]
    assert {each.stat().st_mode & 0o777 for each in (path, *path.parents[:2])} == {0o700}
    synced.clear()
    filesystem.remove(path)
    assert synced == [tmp_path / "a" / "b"]
    assert open_files() == opened


def test_two_may_make_a_directory_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replicas of one node at their first start."""
    mkdir = Path.mkdir

    def behind_another(path: Path, mode: int, exist_ok: bool = False) -> None:
        mkdir(path)
        mkdir(path, mode, exist_ok=exist_ok)

    monkeypatch.setattr(Path, "mkdir", behind_another)
    filesystem.make(tmp_path / "a")
    assert (tmp_path / "a").is_dir()


def test_what_cannot_be_removed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "it is gone")

    (tmp_path / "a").mkdir()
    monkeypatch.setattr(os, "rmdir", fails)
    with pytest.raises(OSError, match="it is gone"):
        filesystem.remove(tmp_path / "a")


def test_making_and_removing_twice_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "c"
    for _ in range(2):
        filesystem.make(path)
        assert path.is_dir()
    (path / "file").write_bytes(b"x")
    for _ in range(2):
        filesystem.remove(path)
        assert not path.exists()
