"""Knowing the events of erased members again, on the board that they come from.

Their keys became hashes, and a file has the text of these. To the board that made the hashes, that
text is another key: it would count the event again. A pseudonym's history shows the same text, so
what is there is not sent. On any other board the text is the key.
"""

from __future__ import annotations

import msgspec

from actors.answers import HistoryAnswer
from actors.moderation import PSEUDONYM_START
from node.client import Client, NodeError, board_path

HISTORY_PAGE = 1_000  # as many as a page may hold

# How a pseudonym begins in JSON: as it is, or escaped.
_MARKS = (PSEUDONYM_START.encode(), b"\\udbff\\udfff", b"\\uDBFF\\uDFFF")


class _Event(msgspec.Struct):
    member: str
    idempotency_key: str


_decode = msgspec.json.Decoder(_Event).decode


class ErasedEvents:
    """The events of erased members that a board has; each member's are read once, when asked for.

    Takes memory for every event of those whom the file names.
    """

    def __init__(self, client: Client, board: str) -> None:
        self._client = client
        self._board = board
        self._sequences: dict[str, dict[str, int]] = {}  # by member and key

    async def sequence_of(self, event: bytes) -> int | None:
        """Tell which sequence an event has on the board; None where it is to be sent.

        event: JSON, of whatever shape. Errors: NodeError.
        """
        if not any(mark in event for mark in _MARKS):
            return None
        try:
            decoded = _decode(event)
        except (ValueError, RecursionError):
            return None  # which the node says better
        if not decoded.member.startswith(PSEUDONYM_START):
            return None
        known = self._sequences.get(decoded.member)
        if known is None:
            known = self._sequences[decoded.member] = await self._read(decoded.member)
        return known.get(decoded.idempotency_key)

    async def _read(self, member: str) -> dict[str, int]:
        path = board_path(self._board, "members", member, "events")
        known: dict[str, int] = {}
        after: str | None = ""
        while after is not None:
            query = f"?limit={HISTORY_PAGE}" + (f"&after={after}" if after else "")
            try:
                answer = await self._client.request("GET", path + query)
            except NodeError as error:
                if error.code in ("member_not_found", "invalid_field"):
                    return known  # nobody's name, or one that no member can have
                raise
            page = msgspec.json.decode(answer, type=HistoryAnswer)
            known |= {item.idempotency_key: item.sequence for item in page.events}
            after = page.next
        return known
