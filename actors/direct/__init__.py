"""The direct transport: TCP between the processes of a cluster, for what is too slow over Ray.

A Ray actor call costs about a millisecond, a frame over TCP a tenth of that. So every seat listens
on a port of its own (`listener.py`), and whoever calls it often keeps a connection to it
(`links.py`). Where the port is and the secret that opens it are asked by a Ray actor call: whoever
may call actors of the cluster may connect, nobody else, and a process that took over the port of
another does not know its secret.

Ray stays beneath. A call goes by TCP when its link is up just then, and as an actor call when not:
at first, behind a firewall, while a process starts again.
"""
