"""metaray behind an amqtt broker: sessions, subscriptions, retained messages and wills outlive it.

A plugin like any other, named in the broker's configuration:

    listeners:
      default: {type: tcp, bind: 127.0.0.1:1883}
    session_expiry_interval: 604800     # what amqtt forgets, at the latest when metaray does
    plugins:
      amqtt.plugins.authentication.AnonymousAuthPlugin: {}
      metaray.integrations.amqtt.MetarayPlugin:
        name: b1                        # the same after a restart
        will_delays: {"sensor-*": 30}   # seconds, by client id

or a broker process of its own: `python -m metaray.integrations.amqtt --name b1 --port 1883`.

It speaks MQTT 3.1.1, as amqtt does, without shared subscriptions: `$share/...` is refused, and so
is a client of another version (CONNACK 1).

Reading order: `plugin.py` (what is promised, and how wills go), `seams.py` (where amqtt is taken
hold of), `connect.py` (who speaks it), `subscribed.py` (its subscriptions, by client),
`connection.py` (the order of one client's packets), `recovery.py` (what there was before the
broker began), `loops.py` (what goes on beside), `security.py` (who may do what), `store.py` (the
calls to metaray).
"""

from metaray.integrations.amqtt.config import Config
from metaray.integrations.amqtt.plugin import MetarayPlugin
from metaray.integrations.amqtt.store import Caller

__all__ = ["Caller", "Config", "MetarayPlugin"]
