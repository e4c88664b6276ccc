"""The main job on real input: `metaray demo`, what `make run` runs.

A local cluster, two real MQTT brokers with real clients, consumers that commit offsets, two leaders
killed in the middle of it all, a broker restarted, everything read back, and a Spark report over
the service's own data. `run.py` tells the story; `steps.py` shows it; `offsets.py`, `mqtt.py` and
`faults.py` are its parts. It exits 0 only if every check held.
"""
