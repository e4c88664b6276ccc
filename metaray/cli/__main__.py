"""`python -m metaray.cli`: the same as the command `metaray`."""

from metaray.cli import main

main()
