"""What a gateway asks a board: one frozen type per question, MessagePack between processes.

A Ray call carries one bytes object: a list of asks. Its result is one bytes object: a list of
replies, one per question and in order. A body of events crosses as the bytes that the client sent.
"""

from __future__ import annotations

import msgspec

from actors.errors import Refusal

NOT_AT_HAND = "not_at_hand"  # of a reply, for the gateway alone: ask again by `read_slowly`


class Question(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The root of all questions.

    packed: the answer is wanted as MessagePack instead of JSON.
    now_us: when the gateway received the request, in microseconds since the epoch.
    """

    packed: bool
    now_us: int


class Describe(Question, frozen=True):
    """Ask for the definition, the sequence and the members per open window."""


class WindowQuestion(Question, frozen=True):
    """The root of questions about one window: `period` as the query has it, and the revision."""

    period: str | None
    revision: int | None


class Top(WindowQuestion, frozen=True):
    """Ask for the first `limit` entries, or those after the cursor `after`."""

    limit: int
    after: str | None


class Member(WindowQuestion, frozen=True):
    """Ask for one member's entry."""

    member: str


class Around(WindowQuestion, frozen=True):
    """Ask for the entries around a member, a position (1-based) or a score: exactly one is set."""

    member: str | None
    position: int | None
    score: str | None
    above: int
    below: int


class Rank(WindowQuestion, frozen=True):
    """Ask where a new member with `score` (keys joined by commas) would stand."""

    score: str


class Range(WindowQuestion, frozen=True):
    """Ask for the entries whose first score key lies within, best first; None is unbounded."""

    minimum: str | None
    maximum: str | None
    limit: int
    after: str | None


class Bands(WindowQuestion, frozen=True):
    """Ask for the last entry inside the top p %, for each of the percentiles joined by commas."""

    percentiles: str


class Lookup(WindowQuestion, frozen=True):
    """Ask for the entries of some members, and how these stand among each other."""

    members: list[str]


class Digest(WindowQuestion, frozen=True):
    """Ask for the digest of a window's standings."""


class Periods(Question, frozen=True):
    """Ask for the windows that ever held an event, newest first, of one kind or of all."""

    kind: str | None
    limit: int
    after: str | None


class Submit(Question, frozen=True):
    """Submit the body of a request as it came: one event or a batch.

    source: the only one that its events may have; those without one get it. None ties them to none.
    """

    body: bytes
    body_packed: bool
    source: str | None = None


class Change(Question, frozen=True):
    """Change the fields of the definition that may change, by the body of a PATCH."""

    body: bytes
    body_packed: bool


class Verdict(Question, frozen=True):
    """The root of moderation: a change of what counts or is shown.

    actor and reason: who decided, and why. key: the id of the API key that asked, None without.
    """

    actor: str
    reason: str
    key: str | None


class Void(Verdict, frozen=True):
    """Let the event with `sequence` no longer count."""

    sequence: int


class Hide(Verdict, frozen=True):
    """Take a member out of every answer, or bring it back."""

    member: str
    hidden: bool


class Remove(Verdict, frozen=True):
    """Let none of a member's events so far count."""

    member: str


class Erase(Verdict, frozen=True):
    """Forget a member's name, everywhere."""

    member: str


class SetProfile(Verdict, frozen=True):
    """Set what is shown with a member's entries; profile: JSON, checked."""

    member: str
    profile: bytes


class OpenDispute(Verdict, frozen=True):
    """Dispute the event with `sequence`; actor: who opens it."""

    sequence: int


class SettleDispute(Verdict, frozen=True):
    """Settle a dispute by its id, as `upheld` or `rejected`; reason: the note."""

    dispute: str
    status: str


class LogQuestion(Question, frozen=True):
    """The root of questions that are answered from the log, newest first, a page at a time."""

    limit: int
    after: str | None


class History(LogQuestion, frozen=True):
    """Ask for a member's events."""

    member: str


class Audit(LogQuestion, frozen=True):
    """Ask for the records of all moderation."""


class Disputes(Question, frozen=True):
    """Ask for disputes, newest first, of one status or all, about one window or all."""

    status: str | None
    period: str | None
    limit: int
    after: str | None


AnyVerdict = Void | Hide | Remove | Erase | SetProfile | OpenDispute | SettleDispute
AnyQuestion = (
    Describe | Top | Member | Around | Rank | Range | Bands | Lookup | Digest | Periods
    | History | Audit | Disputes | Submit | Change | AnyVerdict
)  # fmt: skip


class Ask(msgspec.Struct, frozen=True, array_like=True):
    """A question, and the sequence that the board must have reached before it is answered."""

    min_sequence: int
    question: AnyQuestion


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """One question's result: a body ready to send, or a refusal's code, detail and extras."""

    body: bytes = b""
    code: str = ""
    detail: str = ""
    extra: dict[str, str | int] = {}

    def unwrap(self) -> bytes:
        """Return the body, or raise the refusal."""
        if self.code:
            raise Refusal(self.code, self.detail, **self.extra)
        return self.body


encode = msgspec.msgpack.Encoder().encode
decode_asks = msgspec.msgpack.Decoder(list[Ask]).decode
decode_replies = msgspec.msgpack.Decoder(list[Reply]).decode
