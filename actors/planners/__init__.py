"""Pure planners, one file a duty of the controller: `plan(observed) -> what should be done`.

Like `actors/duties.py`: no clock, no group, no Ray; a step of the controller observes, asks the
planner, and acts through commands that carry its epoch.
"""
