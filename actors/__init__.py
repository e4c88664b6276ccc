"""The floor of effects: everything that touches Ray, the clock, the network or the environment.

The law of this floor: decide below, act here. A module of this floor holds either plain data and
pure planners (`config`, the `plan` functions of `placement`) or a thin shell that carries out what
was decided below (`replica`, `controller`, `transport`), and a shell has no branch about the
protocol. Classes are plain: what they touch is passed in, so a test hands them fakes, and
`remote.py` alone calls `ray.remote`. Time comes from `clock.py` alone. Every call to another
process has a deadline of our own (law 13), no queue is unbounded, and a failure crosses between
actors as data, never as a pickled exception.

It may import `storage` and `state_machines`, and is imported by `metaray`, `jobs` and `bench`.
"""
