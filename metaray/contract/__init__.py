"""What the groups offer, said once by the registry and told to others from there.

The registry (`op.COMMANDS`, `op.QUERIES`, `tables.TABLES`) with its annotations, docstrings and
`#:` comments is the only place where an entity is described. `registry` reads it; `proto` writes it
down as `proto/entities.proto`, the typed contract for brokers in other languages, by a gateway that
whoever has them writes (there is none here); `pages` writes `docs/entities.md`, the reference for
people; `metaray/cli/entities.py` makes the terminal's commands of it. Nothing of this is edited
when an entity is added: `make contract` writes both files again, and a test says when that was
forgotten.
"""
