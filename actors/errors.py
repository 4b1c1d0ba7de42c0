"""What a board refuses: one class, its code from the contract, mapped to a status in one place."""

from __future__ import annotations

from persistence.errors import RanknodeError

TEXT_MAX = 300  # characters of a refusal's texts


class Refusal(RanknodeError):  # noqa: N818  (an answer, not a fault)
    """Raised when a request is understood and answered with a problem.

    `code` is one of the contract's codes; `extra` holds fields that help, such as `field` or
    `sequence`. A refusal changes nothing.
    """

    def __init__(self, code: str, detail: str, **extra: str | int) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = _shortened(detail)
        self.extra = {
            name: _shortened(value) if isinstance(value, str) else value
            for name, value in extra.items()
        }


def _shortened(text: str) -> str:
    """Cut a text that may repeat what a client sent: an answer is not to multiply a request."""
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"


def invalid_field(field: str, detail: str) -> Refusal:
    """Make the refusal of a field whose type or value is wrong."""
    return Refusal("invalid_field", f"{field}: {detail}", field=field)
