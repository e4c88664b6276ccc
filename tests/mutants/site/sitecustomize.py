"""Runs at the start of every process that one with a planted bug starts: it gets the bug too."""

from __future__ import annotations

import os

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import PLANTED, plant

if PLANTED in os.environ:
    plant(MUTANTS[os.environ[PLANTED]])
