"""What the controller decides, one duty a module: pure functions from what was observed to actions.

Actions are data, so a test needs no clock, no group and no Ray; each says which command carries it
out. No planner keeps anything: a controller that dies between two steps loses nothing, and the next
one plans the same from the same rows (design 5.7).
"""
