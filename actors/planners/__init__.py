"""What the controller decides, one file for each area: pure functions from what was read to the
commands that should be sent.

A planner holds no truth and reads no clock: whoever runs it reads the rows, passes them in, and
sends what comes out. Each command is checked again where it is applied, so a plan that was made
from rows that have changed since does no harm; the next step plans anew.
"""
