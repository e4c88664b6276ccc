from __future__ import annotations

import pickle

import pytest

from storage import errors
from storage.errors import StorageError

EVERY: list[StorageError] = [
    errors.CorruptRecord("/d/log", "entries", "b'k'", "its checksum is 1"),
    errors.CorruptLog("/d/log", "entry 5 is missing"),
    errors.StorageFailed("/d/log", "a transaction failed: EIO"),
    errors.MapFull("/d/log", 1 << 40),
    errors.BadKey("a key has at least one part"),
    errors.Closed("/d/log is closed"),
    errors.ViewLost("the view is closed"),
    errors.NoRoom("/d/exports", 1 << 30, 1 << 20),
    errors.CopyGone("/d/exports/1 is gone"),
    errors.BadSnapshot("chunk 7 fails its checksum"),
    errors.SnapshotRefused(5, 9),
    errors.UnsafeFileSystem("/mnt", "nfs4"),
    errors.DirectoryInUse("/d", "17"),
    errors.ForeignData("/d", "cluster", "a", "b"),
    errors.BadIdentity("/d/identity.json", "the file is missing"),
]


def test_the_list_is_whole() -> None:
    assert {type(each) for each in EVERY} == set(StorageError.__subclasses__())


@pytest.mark.parametrize("error", EVERY, ids=lambda each: type(each).__name__)
def test_an_error_survives_pickling_and_says_all_it_knows(error: StorageError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert copy.args == error.args
    assert str(copy) == str(error)
    assert all(str(part) in str(error) for part in error.args)
    assert vars(copy) == vars(error)
