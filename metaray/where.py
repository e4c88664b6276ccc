"""Which cluster is meant when nobody says: names that need no Ray, for whoever only starts."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ADDRESS_VARIABLE: Final = "METARAY_ADDRESS"  #: the Ray address to join when none is given
DEFAULT_DATA: Final = Path(".metaray")  #: where `metaray up --local` keeps a cluster
