"""Bugs in how sessions begin and end, many at a time."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

DUTY: Final = "state_machines.mqtt.session_duty"
LIFE: Final = "state_machines.mqtt.session_life"

SESSIONS: Final = (
    Mutant(
        "what-ends-with-sessions-has-no-bound",
        "law 15",
        LIFE,
        "    if budget.spent:\n        expire(db, at, session)\n    else:\n"
        "        end(db, at, session, budget)\n",
        "    end(db, at, session, budget)\n",
    ),
    Mutant(
        "wills-of-many-sessions-are-read-without-a-bound-of-bytes",
        "law 15",
        LIFE,
        "            if budget.spent:\n                break\n    return there\n",
        "    return there\n",
    ),
    Mutant(
        "openings-end-any-number-of-rows",
        "law 15",
        LIFE,
        "                count = min(count, place + 1)\n                break\n",
        "                pass\n",
    ),
    Mutant(
        "a-batch-that-is-refused-has-opened-the-first-of-a-client",
        "law 8",
        LIFE,
        "with nullcontext() if partly else db.part():",
        "with nullcontext():",
    ),
    Mutant(
        "what-ends-with-sessions-is-read-when-some-of-it-is-gone",
        "law 15",
        LIFE,
        "        _let_go(db, at, before, Budget(), subscribed)",
        "        _let_go(db, at, before, Budget(), subscription.stored(db, tenant, client_id))",
    ),
    Mutant(
        "what-was-too-much-for-a-command-stays-open-until-the-next-sweep",
        "design 5.7",
        "actors.duties.sessions",
        "if code == QuotaExceeded.code]",
        'if code == ""]',
    ),
    Mutant(
        "all-filters-of-a-session-may-be-long",
        "law 15",
        "state_machines.mqtt.subscription",
        "                if count > LONG_MAX and",
        "                if count > SUBSCRIPTIONS_MAX and",
    ),
    Mutant(
        "who-is-gone-and-has-members-yet-hands-its-groups-on",
        "A18",
        "state_machines.mqtt.share_group",
        "self.limit - len(mine) if size < BYTES_TAKEN_MAX else 0",
        "self.limit - len(mine)",
    ),
    Mutant(
        "a-page-of-held-sessions-has-no-bound-of-bytes",
        "law 14",
        DUTY,
        "            if size > PAGE_BYTES_MAX:\n                break\n",
        "",
    ),
    Mutant(
        "memberships-end-with-a-session-whatever-their-bytes",
        "law 15",
        "state_machines.mqtt.share_group",
        "        if size >= BYTES_TAKEN_MAX:\n            break\n",
        "",
    ),
    Mutant(
        "a-session-that-was-ended-keeps-its-place-in-the-quota",
        "A10",
        "state_machines.mqtt.sessions",
        "        return self.connected_ms != 0\n",
        "        return True\n",
    ),
    Mutant(
        "a-batch-opens-what-was-ended-and-counts-nothing",
        "A10",
        LIFE,
        "                there[place] = _NONE  # it counts no more\n",
        "                continue\n",
    ),
    Mutant(
        "a-takeover-keeps-the-epoch",
        "design 1",
        LIFE,
        "    epochs += db.unique_many(len(keys) - len(epochs))\n",
        "    epochs += [old[3] or db.unique() for old in there[len(epochs) :]]\n",
    ),
    Mutant(
        "epochs-of-a-batch-are-not-those-of-one-by-one",
        "design 1",
        LIFE,
        "            epochs += db.unique_many(place - len(epochs))\n",
        "",
    ),
    Mutant(
        "a-batch-opens-over-a-will-and-leaves-it",
        "MQTT 5, 3.1.3.2.2",
        LIFE,
        "last_will or ",
        "",
    ),
    Mutant(
        "of-two-takeovers-in-a-batch-both-see-the-row-before",
        "MQTT 5, 3.1.4",
        LIFE,
        "    if len(set(keys)) < len(keys):\n        columns: Any = (tenants, client_ids, brokers",
        "    if False:\n        columns: Any = (tenants, client_ids, brokers",
    ),
    Mutant(
        "a-batch-leaves-the-shares-of-a-session-that-ends",
        "MQTT 5, 3.1.2.4",
        LIFE,
        "        return member(key[0]) and member(*key)\n",
        "        return False\n",
    ),
    Mutant(
        "a-batch-leaves-the-timer-of-whom-it-resumes",
        "MQTT 5, 3.1.2.11.2",
        LIFE,
        "        due.disarm(db, expires_ms, due.SESSION, *key)\n",
        "",
    ),
    Mutant(
        "a-batch-looks-for-no-timer-of-whom-it-resumes",
        "MQTT 5, 3.1.2.11.2",
        LIFE,
        " or old[_EXPIRES_MS] or ",
        " or ",
    ),
    Mutant(
        "a-batch-closes-at-an-old-epoch",
        "law 20",
        LIFE,
        "old[_CONNECTED] and old[_EPOCH] == epoch and",
        "old[_CONNECTED] and",
    ),
    Mutant(
        "a-batch-closes-and-leaves-the-will",
        "MQTT 5, 3.1.2.5",
        LIFE,
        " == epoch and not last_will\n",
        " == epoch\n",
    ),
    Mutant(
        "a-batch-closes-and-sets-no-timer",
        "design 5.8",
        LIFE,
        "    due.arm_all(db, timers)\n",
        "",
    ),
    Mutant(
        "a-batch-ends-sessions-and-leaves-what-hangs-on-them",
        "MQTT 5, 3.1.2.11.2",
        LIFE,
        "if lasts_s else hangs(key, old)):",
        "if lasts_s else False):",
    ),
    Mutant(
        "of-two-closes-in-a-batch-both-see-the-row-before",
        "MQTT 5, 3.14.4",
        LIFE,
        "    if len(set(keys)) < len(keys):\n        columns: Any = (tenants, client_ids, epochs",
        "    if False:\n        columns: Any = (tenants, client_ids, epochs",
    ),
    Mutant(
        "sessions-of-other-brokers-are-listed-as-held",
        "design 5.8",
        DUTY,
        "wanted = values[_BROKER] in brokers and (",
        "wanted = (",
    ),
    Mutant(
        "who-is-not-connected-is-listed-as-connected",
        "design 5.8",
        DUTY,
        "(values[_CONNECTED] or not self.connected)",
        "True",
    ),
    Mutant(
        "a-page-of-held-sessions-ends-before-the-last",
        "design 5.8",
        DUTY,
        "            if next(scan, None) is None:\n",
        "            if not found:\n",
    ),
    Mutant(
        "an-older-controller-closes-sessions",
        "law 20",
        DUTY,
        "        pass_fence(db, self.controller_epoch)\n        count",
        "        count",
    ),
    Mutant(
        "wills-of-sessions-that-last-are-no-burden-to-a-batch",
        "A10",
        LIFE,
        "        budget.spend(rows=0, size=message_bytes(pending))\n",
        "",
    ),
    Mutant(
        "what-hangs-on-sessions-has-no-bound-of-bytes",
        "law 15",
        LIFE,
        "size + bytes_of_rows + bytes_shared",
        "size",
    ),
)
