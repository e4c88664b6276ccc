"""Which cluster is meant when nobody says: names that need no Ray, for whoever only starts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

ADDRESS_VARIABLE: Final = "METARAY_ADDRESS"  #: the Ray address to join when none is given
DEFAULT_DATA: Final = Path(".metaray")  #: where `metaray up --local` keeps a cluster


def address_of(address: str | None, data: Path | None) -> str | None:
    """The Ray address that is meant; None: that of the local cluster on `data`.

    It is the one given, or that of `METARAY_ADDRESS`; not where `data` names a directory, be it the
    usual one: what is said of this very command goes before what its environment says of all.
    """
    if address or data is not None:
        return address or None
    return os.environ.get(ADDRESS_VARIABLE) or None
