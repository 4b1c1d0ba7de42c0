"""What a board refuses: one class, its code from the contract, mapped to a status in one place."""

from __future__ import annotations

from persistence.errors import RanknodeError


class Refusal(RanknodeError):  # noqa: N818  (an answer, not a fault)
    """Raised when a request is understood and answered with a problem.

    `code` is one of the contract's codes; `extra` holds fields that help, such as `field` or
    `sequence`. A refusal changes nothing.
    """

    def __init__(self, code: str, detail: str, **extra: str | int) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.extra = extra


def invalid_field(field: str, detail: str) -> Refusal:
    """Make the refusal of a field whose type or value is wrong."""
    return Refusal("invalid_field", f"{field}: {detail}", field=field)
