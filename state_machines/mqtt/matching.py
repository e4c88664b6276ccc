"""Matching: filters with topics and with each other, patterns with names, nets with addresses.

    matches("a/+", "a/b")          a topic name with a filter
    covers("a/#", "a/+")           every topic of the second is one of the first
    overlaps("a/+", "+/b")         some topic is one of both
    like("sensor-*", "sensor-7")   a name with a pattern
    fill("to/%c", "ann", "bob")    placeholders of a filter

Pure, and each takes time in proportion to what it looks at, however it is made up: no pattern from
outside becomes a regular expression.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from state_machines import names
from state_machines.errors import Invalid

CLIENT: Final = "%c"  #: stands for the client id
USERNAME: Final = "%u"  #: stands for the user's name
ADDRESS_BYTES_MAX: Final = 64  #: IPv6 in words, a zone and a prefix length
PATTERN_BYTES_MAX: Final = 256
MAPPED_BITS: Final = 96  #: of an IPv6 address, before the IPv4 one that it stands for

Net = IPv4Network | IPv6Network


# -- topics ---------------------------------------------------------------------------------------


def unshared(topic_filter: str) -> str:
    """The filter that a shared one shares (MQTT 5, 4.8.2), any other as it is, valid or not."""
    shared, *parts = topic_filter.split("/", names.SHARED_LEVELS_MIN - 1)
    return parts[1] if shared == names.SHARED and len(parts) > 1 else topic_filter


def covers(outer: str, inner: str) -> bool:
    """Whether `outer` matches every topic that `inner` matches. `inner` may be a topic name."""
    wide, narrow = outer.split("/"), inner.split("/")
    if wide == ["+", "#"]:
        wide = ["#"]  # another spelling: every topic has a first level
    if _hidden(wide[0], narrow[0]):
        return False
    for place, level in enumerate(wide):
        if level == "#":
            return True
        if place == len(narrow) or narrow[place] == "#":
            return False
        if level not in ("+", narrow[place]):
            return False
    return len(wide) == len(narrow)


def matches(topic_filter: str, topic: str) -> bool:
    """Whether a filter matches a topic name (MQTT 5, 4.7)."""
    return covers(topic_filter, topic)


def overlaps(one: str, other: str) -> bool:
    """Whether there is a topic that both filters match."""
    left, right = one.split("/"), other.split("/")
    if _hidden(left[0], right[0]) or _hidden(right[0], left[0]):
        return False
    for mine, theirs in zip(left, right, strict=False):
        if "#" in (mine, theirs):
            return True
        if mine != theirs and "+" not in (mine, theirs):
            return False
    if len(left) == len(right):
        return True
    # "a/#" matches "a", too (MQTT 5, 4.7.1.2).
    shorter, longer = sorted((left, right), key=len)
    return longer[len(shorter)] == "#"


def _hidden(wild: str, level: str) -> bool:
    """A wildcard does not begin a filter for topics that begin with `$` (MQTT 5, 4.7.2)."""
    return wild in ("+", "#") and level.startswith("$")


def fill(topic_filter: str, client_id: str, user: str, *, denies: bool = False) -> str | None:
    """The filter with `%c` and `%u` in its levels replaced, None if a name does not fit.

    A name that is empty, or has a wildcard or several levels, fits none: a client that calls itself
    `#` has not all topics for its own. Nor has one that calls itself `$SYS` those of the server: a
    `$` at the beginning is the rule's to say (MQTT 5, 4.7.2). Of a filter that `denies`, only names
    with a wildcard do not fit, so that no client escapes it by its name.
    """
    unfit = "+#" if denies else "/+#"
    for placeholder, name in ((CLIENT, client_id), (USERNAME, user)):
        if placeholder in topic_filter and (not name or any(each in name for each in unfit)):
            return None
    first, *others = topic_filter.split(CLIENT)
    parts = [part.replace(USERNAME, user) for part in (first, *others)]
    filled = client_id.join(parts)
    pairs = ((topic_filter, filled), (unshared(topic_filter), unshared(filled)))
    grown = any(new.startswith("$") and not own.startswith("$") for own, new in pairs)
    return None if grown and not denies else filled


# -- names ----------------------------------------------------------------------------------------


def check_pattern(pattern: str, field: str) -> None:
    """Raise Invalid unless this is a pattern: `*` is any text, `?` any one character."""
    names.name(pattern, field, PATTERN_BYTES_MAX)


def like(pattern: str, name: str) -> bool:
    """Whether a name matches a pattern, as a whole."""
    return Subject(name).like(pattern)


class Subject:
    """A name that many patterns are asked of: where it has which character is found once for all.

    Every piece between stars is looked for once, where the one before ended: no way back. One with
    a `?` is looked for at all places at once, a character of the piece after the other: a number
    stands for places of the name, bit `n` for place `n`.
    """

    __slots__ = ("_at", "_name")

    def __init__(self, name: str) -> None:
        self._name = name
        self._at: dict[str, int] = {}  # the places of a character

    def like(self, pattern: str) -> bool:
        """Whether the name matches a pattern, as a whole."""
        name = self._name
        first, *rest = pattern.split("*")
        if not rest:
            return len(name) == len(first) and _at(first, name, 0)
        last = rest.pop()
        end = len(name) - len(last)
        if end < len(first) or not _at(first, name, 0) or not _at(last, name, end):
            return False
        place = len(first)
        for piece in rest:
            found = self._find(piece, place, end)
            if found < 0:
                return False
            place = found + len(piece)
        return True

    def _find(self, piece: str, place: int, end: int) -> int:
        """Where the piece is first, -1 if nowhere."""
        if "?" not in piece:
            return self._name.find(piece, place, end)
        room = end - len(piece) - place + 1
        if room <= 0:
            return -1
        found = (1 << room) - 1 << place
        for at, each in enumerate(piece):
            if each != "?":
                found &= self._places(each) >> at
                if not found:
                    return -1
        return (found & -found).bit_length() - 1

    def _places(self, char: str) -> int:
        """The places of a character."""
        known = self._at.get(char)
        if known is None:
            bits = bytearray(len(self._name) // 8 + 1)
            place = self._name.find(char)
            while place >= 0:
                bits[place >> 3] |= 1 << (place & 7)
                place = self._name.find(char, place + 1)
            known = self._at[char] = int.from_bytes(bits, "little")
        return known


def _at(piece: str, name: str, place: int) -> bool:
    if "?" not in piece:
        return name.startswith(piece, place)
    return all(each in ("?", name[place + at]) for at, each in enumerate(piece))


# -- addresses ------------------------------------------------------------------------------------


@lru_cache(maxsize=4_096)
def net(text: str) -> Net | None:
    """The addresses that an IP or a CIDR names, None if it is neither."""
    try:
        found = ip_network(text, strict=False)
    except ValueError:
        return None
    first = found.network_address
    if isinstance(first, IPv6Address) and first.ipv4_mapped and found.prefixlen >= MAPPED_BITS:
        return ip_network((first.ipv4_mapped, found.prefixlen - MAPPED_BITS))
    return found


def check_net(text: str, field: str, *, single: bool = False) -> None:
    """Raise Invalid unless this is an address, or (unless `single`) a CIDR."""
    names.name(text, field, ADDRESS_BYTES_MAX)
    found = net(text)
    if found is None or (single and "/" in text):
        what = "address" if single else "address or net"
        raise Invalid(f"{field}: {text!r} is no {what} of IPv4 or IPv6")


def within(text: str, ip: str) -> bool:
    """Whether an address is among those that an IP or a CIDR names; one that is none, is not."""
    found = net(text)
    if found is None:
        return False
    try:
        address = ip_address(ip)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped  # a client of a socket for both kinds
    return address.version == found.version and address in found
