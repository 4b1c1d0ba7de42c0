"""Making the rulings of a file hold on a board, each once, however often the file is imported.

A ruling has no key of its own by which the board would know it again, and some may not be made
twice: a member removed again would lose what was earned since. So the board's audit is read once,
when the first ruling comes. What a line says and the audit has is taken out of what was read, and
the line is skipped; a line for which nothing is left there is made a call. Lines come in the order
in which the rulings were made, so whatever broke off an earlier import, the first ones are there.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from actors.answers import AuditAnswer, AuditItem, BatchAnswer, HistoryAnswer
from actors.errors import Refusal
from actors.rulings import REJECTED, UPHELD
from actors.submission import check_member
from node.client import Client, NodeError, board_path
from node.importing_erased import ErasedEvents
from node.ruling_lines import FORGOTTEN, RulingLine
from node.transfer import RulingRow, batch_body
from persistence.errors import RanknodeError

if TYPE_CHECKING:
    from node.importing import Summary

AUDIT_PAGE = 1_000  # as many as a page may hold

# Takes the place of a reason that went with an erased name: the contract wants one.
NO_REASON = "the file gives no reason"

_SETTLED: dict[str, str] = {"uphold": UPHELD, "reject": REJECTED}

# What a node says of one ruling; everything else it says of all of them.
_REFUSALS = frozenset({
    "malformed_body", "body_too_large", "invalid_field", "value_out_of_range", "event_not_found",
    "member_not_found", "dispute_not_found",
})  # fmt: skip

# An action; the member, the event's sequence or the dispute's id; the actor; the reason.
_Key: TypeAlias = tuple[str, str | int, str, str]


class _RefusedError(RanknodeError):
    """Raised where one ruling of a file cannot be made; the others still can."""


class _Opened(msgspec.Struct):
    id: str


class RulingImport:
    """The rulings of one file, on their way to a board: `take` them in the file's order."""

    def __init__(self, client: Client, board: str, summary: Summary, erased: ErasedEvents) -> None:
        self._client = client
        self._board = board
        self._summary = summary
        self._erased = erased
        self._audit: dict[_Key, list[AuditItem]] | None = None
        self._disputes: dict[str, str] = {}  # ids on the board by those in the file

    async def take(self, row: RulingRow) -> None:
        """Make a ruling hold, and count what came of it; when it returns, it is on disk.

        Errors: NodeError when the node cannot take any.
        """
        try:
            if await self._make(row.ruling):
                self._summary.rulings_applied += 1
            else:
                self._summary.rulings_skipped += 1
        except _RefusedError as error:
            self._summary.reject(row.line, f"{row.ruling.action}: {error}")

    async def _make(self, ruling: RulingLine) -> bool:
        """Call for a ruling, and tell so, unless it was made before."""
        if _is_forgotten(ruling):
            return False
        if self._audit is None:
            self._audit = await self._read_audit()
        about = await self._about(ruling)
        actor, reason = _recorded(ruling)
        equal = self._audit.get((ruling.action, about, actor, reason)) or self._audit.get(
            (ruling.action, about, actor, ruling.reason)  # on the board that the file is of
        )
        made = equal.pop() if equal else None
        dispute = await self._call(ruling, about, reason) if made is None else made.dispute
        if ruling.action == "dispute":
            assert isinstance(ruling.dispute, str)
            assert dispute is not None
            self._disputes[ruling.dispute] = dispute
        return made is None

    async def _read_audit(self) -> dict[_Key, list[AuditItem]]:
        """Read all of the board's audit; of equal records the oldest is the last of a list."""
        found: dict[_Key, list[AuditItem]] = defaultdict(list)
        after: str | None = ""
        while after is not None:
            query = f"?limit={AUDIT_PAGE}" + (f"&after={after}" if after else "")
            path = board_path(self._board, "audit") + query
            page = msgspec.json.decode(await self._client.request("GET", path), type=AuditAnswer)
            for item in page.records:
                about: str | int | None = item.event_sequence
                if item.action in _SETTLED:
                    about = item.dispute
                elif about is None:
                    about = item.member
                assert about is not None
                found[item.action, about, item.actor, item.reason].append(item)
            after = page.next
        return dict(found)

    async def _about(self, ruling: RulingLine) -> str | int:
        """Find what a ruling is about on the board: an event, a dispute or a member."""
        if isinstance(ruling.member, str):
            try:
                check_member(ruling.member)  # before it stands in a path
            except Refusal as refusal:
                raise _RefusedError(refusal.detail) from None
            return ruling.member
        if ruling.action not in _SETTLED:
            assert isinstance(ruling.event, msgspec.Raw)
            return await self._sequence_of(bytes(ruling.event))
        assert isinstance(ruling.dispute, str)
        dispute = self._disputes.get(ruling.dispute)
        if dispute is None:
            raise _RefusedError(f"no line before it opens the dispute {ruling.dispute!r}")
        return dispute

    async def _sequence_of(self, event: bytes) -> int:
        """Submit an event again, which answers with the sequence that it has on the board."""
        sequence = await self._erased.sequence_of(event)
        if sequence is not None:
            return sequence
        answer = await self._request("POST", ("events",), batch_body([event]))
        results = msgspec.json.decode(answer, type=BatchAnswer)
        self._summary.applied += results.applied
        (result,) = results.results
        if result.status == "rejected" or result.sequence is None:
            raise _RefusedError(f"its event: {result.code}: {result.detail}")
        self._summary.last_sequence = max(self._summary.last_sequence, result.sequence)
        return result.sequence

    async def _call(self, ruling: RulingLine, about: str | int, reason: str) -> str | None:
        """Make a ruling; returns the id of a dispute that it opens."""
        by: dict[str, Any] = {"actor": ruling.actor, "reason": reason}
        match ruling.action:
            case "void":
                await self._request("POST", ("events", str(about), "void"), by)
            case "hide":
                await self._request("PUT", ("members", str(about), "hidden"), by)
            case "unhide":
                await self._request("DELETE", ("members", str(about), "hidden"), by)
            case "remove":
                await self._require_none_later(str(about))
                await self._request("DELETE", ("members", str(about)), by)
            case "profile":
                await self._request("PUT", ("members", str(about), "profile"), ruling.profile)
            case "dispute":
                body = {"sequence": about, "reason": reason, "opened_by": ruling.actor}
                opened = await self._request("POST", ("disputes",), body)
                return msgspec.json.decode(opened, type=_Opened).id
            case "uphold" | "reject":
                body = {"status": _SETTLED[ruling.action], "note": reason, "actor": ruling.actor}
                await self._request("PATCH", ("disputes", str(about)), body)
        return None

    async def _require_none_later(self, member: str) -> None:
        """Refuse to remove a member whose events go on behind those of the file so far.

        An earlier import may have brought them, in which there was nothing to remove yet.
        """
        path = board_path(self._board, "members", member, "events")
        try:
            answer = await self._client.request("GET", f"{path}?limit=1")
        except NodeError as error:
            raise _refused(error) from None
        newest = msgspec.json.decode(answer, type=HistoryAnswer).events[0]
        if newest.sequence > self._summary.last_sequence:
            raise _RefusedError(f"{member!r} has events that are not of the lines before")

    async def _request(self, method: str, rest: tuple[str, ...], body: Any) -> bytes:
        """Call the board; a body that is no bytes is written as JSON."""
        written = body if isinstance(body, bytes) else msgspec.json.encode(body)
        try:
            return await self._client.request(method, board_path(self._board, *rest), written)
        except NodeError as error:
            raise _refused(error) from None


def _refused(error: NodeError) -> RanknodeError:
    """Tell what a node says of one ruling from what ends the import."""
    return _RefusedError(str(error)) if error.code in _REFUSALS else error


def _is_forgotten(ruling: RulingLine) -> bool:
    """Tell whether there is nothing to make: the events of who was erased have no name already."""
    profile = ruling.profile
    forgotten_profile = isinstance(profile, msgspec.Raw) and bytes(profile) == FORGOTTEN
    return ruling.action in ("erase", "erased") or forgotten_profile


def _recorded(ruling: RulingLine) -> tuple[str, str]:
    """Tell which actor and reason the audit will have."""
    if ruling.action == "profile":
        return "", ""
    if ruling.reason:
        return ruling.actor, ruling.reason
    # Disputes that are told apart by their reasons alone would become one.
    number = f" for dispute {ruling.dispute}" if ruling.action == "dispute" else ""
    return ruling.actor, NO_REASON + number
