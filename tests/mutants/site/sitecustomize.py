"""Runs at the start of every process that a trial starts: what the trial has, it has too."""

from __future__ import annotations

import os

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import PLANTED, plant
from tests.mutants.reach import REACHED, write_down

if PLANTED in os.environ:
    plant(MUTANTS[os.environ[PLANTED]])
if REACHED in os.environ:
    write_down(os.environ[REACHED])
