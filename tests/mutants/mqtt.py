"""Bugs of what MQTT clients and an amqtt broker are promised."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

MQTT: Final = (
    Mutant(
        "a-will-overwrites-what-its-client-says-since",
        "MQTT 5 3.1.2.5",
        "state_machines.mqtt.retained",
        "if 0 < self.as_of_ms <= old.stored_ms:",
        "if 0 < self.as_of_ms < old.stored_ms:",
    ),
    Mutant(
        "a-will-counts-as-of-when-it-was-said",
        "MQTT 5 3.1.2.5",
        "state_machines.mqtt.retained",
        "min(self.as_of_ms or at.now_ms, at.now_ms)",
        "at.now_ms",
    ),
    Mutant(
        "a-member-of-an-earlier-session-stays",
        "MQTT 5 3.1.2.4",
        "actors.planners.share_groups",
        " or member.session_created_ms not in (0, session.created_ms)",
        "",
    ),
    Mutant(
        "a-session-is-opened-without-its-will",
        "MQTT 5 3.1.2.5",
        "state_machines.mqtt.session_will",
        "        SetWill.apply(self._set(opened.epoch), db, at)\n",
        "",
    ),
    Mutant(
        "a-rule-makes-a-topic-of-what-is-none",
        "MQTT 5 4.7",
        "state_machines.mqtt.rewrite",
        "named = _is_one(topic, action) and ",
        "named = ",
    ),
    Mutant(
        "a-subscription-identifier-may-be-any",
        "MQTT 5 3.8.2",
        "state_machines.mqtt.subscription",
        "if not 0 <= self.subscription_id <= SUBSCRIPTION_ID_MAX:",
        "if False:",
    ),
    Mutant(
        "a-subscription-identifier-is-lost",
        "MQTT 5 3.8.2",
        "state_machines.mqtt.subscription",
        "                    self.subscription_id,",
        "                    0,",
    ),
    Mutant(
        "a-session-that-begins-anew-is-as-old-as-the-one-before",
        "MQTT 5 3.1.2.4",
        "state_machines.mqtt.session_life",
        "old[_CREATED_MS] if goes_on else at.now_ms",
        "old[_CREATED_MS] or at.now_ms",
    ),
    Mutant(
        "a-session-that-begins-anew-is-kept-as-old-as-the-one-before",
        "MQTT 5 3.1.2.4",
        "state_machines.mqtt.session_life",
        "old if on else now_ms for on",
        "old or now_ms for on",
    ),
    Mutant(
        "who-opens-is-not-told-since-when",
        "MQTT 5 3.1.2.4",
        "state_machines.mqtt.session",
        "epoch, present, created_ms)",
        "epoch, present)",
    ),
    Mutant(
        "a-fenced-broker-takes-wills",
        "MQTT 3.1.1 3.1.2.5",
        "metaray.integrations.amqtt.loops",
        "                task.cancel()\n            await self._fenced(error)",
        "                pass\n            await self._fenced(error)",
    ),
    Mutant(
        "one-group-that-is-away-hides-all-takeovers",
        "design 5.7",
        "metaray.integrations.amqtt.loops",
        "*map(call, some), return_exceptions=True",
        "*map(call, some)",
    ),
    Mutant(
        "a-row-that-was-read-before-undoes-an-opening",
        "MQTT 3.1.1 3.1.2.4",
        "metaray.integrations.amqtt.recovery",
        "if row.client_id in self._opened:",
        "if not row.client_id:",
    ),
    Mutant(
        "messages-of-a-session-that-ended-go-to-the-next",
        "MQTT 3.1.1 3.1.2.4",
        "metaray.integrations.amqtt.seams",
        "            and known.attributes.get(CREATED) == opened.created_ms",
        "",
    ),
    Mutant(
        "a-connection-made-while-the-broker-stops-stays-open",
        "MQTT 3.1.1 3.1.2.4",
        "metaray.integrations.amqtt.plugin",
        "in tuple(self.seams.serving):",
        "in tuple(self.seams.live.values()):",
    ),
    Mutant(
        "a-client-that-is-gone-is-served",
        "MQTT 3.1.1 3.1.4",
        "metaray.integrations.amqtt.seams",
        "            self._check_wanted(left)\n            opened",
        "            opened",
    ),
    Mutant(
        "a-shared-filter-is-granted",
        "MQTT 3.1.1 4.7.3",
        "metaray.integrations.amqtt.seams",
        "return not names.shared(topic_filter)",
        "return True",
    ),
    Mutant(
        "a-will-speaks-for-the-server",
        "MQTT 3.1.1 4.7.2",
        "metaray.integrations.amqtt.plugin",
        "if invalid(will.topic) or not await",
        "if not await",
    ),
    Mutant(
        "a-will-that-cannot-be-said-holds-up-others",
        "MQTT 3.1.1 3.1.2.5",
        "metaray.integrations.amqtt.wills",
        "asyncio.timeout_at(until)",
        "asyncio.timeout_at(None)",
    ),
    Mutant(
        "a-will-is-said-when-another-may-have-it",
        "MQTT 3.1.1 3.1.2.5",
        "metaray.integrations.amqtt.wills",
        " or asyncio.get_running_loop().time() >= until:",
        ":",
    ),
    Mutant(
        "a-refused-client-is-left-without-a-will",
        "MQTT 5 3.1.2.5",
        "metaray.integrations.amqtt.plugin",
        "opened.epoch, graceful=False)",
        "opened.epoch, graceful=True)",
    ),
)
