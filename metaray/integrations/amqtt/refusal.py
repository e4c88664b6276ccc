"""The refusal of a connection, as it goes from whoever decides to the CONNACK that says it."""

from __future__ import annotations


class Refused(Exception):
    """The connection is not accepted; `code` is the return code of the CONNACK that says so."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason
