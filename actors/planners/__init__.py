"""What the controller decides: pure planners from what was observed to what should be done.

One file for each subject, `plan(observed) -> actions`. Actions are data, so a test needs no clock,
no group and no Ray. Nothing here holds a truth of its own: a controller that dies between two steps
loses nothing, and the next one plans the same from the same rows (design 5.7). Who observes and
acts is the duty of the same name (`actors/duties`).
"""
