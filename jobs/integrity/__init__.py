"""Referential integrity: what the rows of a cut have to say of each other, rule by rule.

    rule        what a rule is, the shape of what it finds, and the two patterns most rules follow:
                an index that has to follow from other rows, a count that has to be their number
    sessions    sessions, subscriptions, wills, retained messages, timers
    connectors  connectors and what finds them
    shares      shared subscriptions
    offsets     consumer groups and their offsets
    engine      shards and segments
    common      topics, leases, tenants
    slots       whether a row is in the group that owns its slot

A rule claims only what the commands of the service keep true. Where a cut cannot know (a topic
that nobody has registered, a broker that never was one of the fleet) nothing is claimed, or only if
an option says that it is meant so.
"""
