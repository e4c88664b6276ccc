"""The pure floor: the same inputs give the same outputs, on every replica and in every process.

Nothing here reads a clock, draws luck of its own, touches a file or a socket, or knows Ray. Time
arrives as ticks (`raft`) or as the leader's stamp (`machine`); luck is a generator passed in; order
is sorted. That is what lets one core run under Ray, under the simulator and in a golden script.
`tests/test_house.py` enforces the list of what may be imported.
"""
