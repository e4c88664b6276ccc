"""Every limit of a request, in one place (design, section 6).

Each is answered with a typed error that names the field and the limit, before anything is proposed.
"""

from __future__ import annotations

from typing import Final

VALUE_BYTES_MAX: Final = 1 << 20  #: one value: of a key, a retained message, a will
REQUEST_BYTES_MAX: Final = 4 << 20  #: one encoded request
BATCH_ITEMS_MAX: Final = 10_000  #: commands in one proposal, items in one command
CALL_ITEMS_MAX: Final = 20_000  #: items of all commands of a proposal: it is applied as a whole
DEPTH_MAX: Final = 16  #: nesting of a body
PARTS_MAX: Final = 65_536  #: lists and maps in a body: an empty one takes a byte to say, 60 to have
VALUES_MAX: Final = 130_100  #: values in a body of the largest size, a map counting as two more
NAME_BYTES_MAX: Final = 256  #: names that no protocol defines otherwise
MQTT_STRING_BYTES_MAX: Final = 65_535  #: client ids, topic names and filters (MQTT 5, 1.5.4)
REPLY_BYTES_MAX: Final = 8 << 20  #: results of one reply, softly: the last one may pass it
PAGE_ROWS_MAX: Final = 10_000  #: rows of one page
PAGE_BYTES_MAX: Final = 1 << 20  #: values of one page, softly: a page has at least one row
CLIENTS_MAX: Final = 10_000  #: clients that a group remembers; the one silent longest goes first
WINDOW_MAX: Final = 1_024  #: replies kept per client
INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1
