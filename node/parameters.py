"""The parameters of paths and query strings: what each may be, read strictly and documented.

The same declaration reads a parameter and describes it in the OpenAPI document, so the two cannot
differ.
"""

from __future__ import annotations

import re
from typing import Any, Protocol

import msgspec

from actors.definition import BOARD_ID
from actors.errors import Refusal, invalid_field
from actors.submission import NAME_BYTES_MAX, check_member

INTEGER_MAX = 2**53 - 1  # the largest integer that every client's double carries

_INTEGER = re.compile("[0-9]{1,16}")


class Kind(Protocol):
    """How a parameter's text is read and described."""

    def read(self, name: str, text: str) -> Any:
        """Return the value of the text, or raise a Refusal that names the parameter."""

    def schema(self) -> dict[str, Any]:
        """Describe the values in JSON Schema."""


class Integer(msgspec.Struct, frozen=True):
    """A whole number within bounds, in decimal digits and nothing else."""

    minimum: int
    maximum: int = INTEGER_MAX

    def read(self, name: str, text: str) -> int:
        """Return the number."""
        if not _INTEGER.fullmatch(text) or not self.minimum <= int(text) <= self.maximum:
            raise invalid_field(name, f"must be a number from {self.minimum} to {self.maximum}")
        return int(text)

    def schema(self) -> dict[str, Any]:
        """Describe the bounds."""
        return {"type": "integer", "minimum": self.minimum, "maximum": self.maximum}


class Text(msgspec.Struct, frozen=True):
    """Text that only the board can judge; here it is kept short."""

    length_max: int
    code: str = "invalid_field"

    def read(self, name: str, text: str) -> str:
        """Return the text as it is."""
        if not 1 <= len(text) <= self.length_max:
            detail = f"must have 1 to {self.length_max} characters"
            raise Refusal(self.code, f"{name}: {detail}", field=name)
        return text

    def schema(self) -> dict[str, Any]:
        """Describe the length."""
        return {"type": "string", "minLength": 1, "maxLength": self.length_max}


class Choice(msgspec.Struct, frozen=True):
    """One of a few words."""

    words: tuple[str, ...]

    def read(self, name: str, text: str) -> str:
        """Return the word."""
        if text not in self.words:
            raise invalid_field(name, "must be " + " or ".join(self.words))
        return text

    def schema(self) -> dict[str, Any]:
        """Describe the words."""
        return {"type": "string", "enum": list(self.words)}


class BoardId(msgspec.Struct, frozen=True):
    """A board's id."""

    def read(self, name: str, text: str) -> str:
        """Return the id."""
        if not BOARD_ID.fullmatch(text):
            raise invalid_field(name, f"must match {BOARD_ID.pattern}")
        return text

    def schema(self) -> dict[str, Any]:
        """Describe the pattern."""
        return {"type": "string", "pattern": f"^{BOARD_ID.pattern}$"}


class MemberName(msgspec.Struct, frozen=True):
    """A member's name: NFC text without control characters or surrounding white space."""

    def read(self, _name: str, text: str) -> str:
        """Return the name exactly as it was sent."""
        check_member(text)
        return text

    def schema(self) -> dict[str, Any]:
        """Describe the length; the rest of the rules is beyond JSON Schema."""
        return {"type": "string", "minLength": 1, "maxLength": NAME_BYTES_MAX}


class Parameter(msgspec.Struct, frozen=True):
    """A parameter of a query string; `default` None means that it has none."""

    name: str
    kind: Kind
    description: str
    default: int | None = None
    required: bool = False


PATH_PARAMETERS: dict[str, tuple[Kind, str]] = {
    "board": (BoardId(), "The board's id."),
    "sequence": (Integer(1), "The event's place in the log."),
    "dispute": (Text(20), "The dispute's id."),
    "member": (MemberName(), "The member's name; percent-encoded, `/` and `%` included."),
}


def read_query(given: dict[str, str], declared: tuple[Parameter, ...]) -> dict[str, Any]:
    """Read a decoded query string by its declaration; what is absent gets its default.

    Raises Refusal `invalid_field` for a parameter that is unknown, wrong, or missing.
    """
    values: dict[str, Any] = {}
    for parameter in declared:
        text = given.pop(parameter.name, None)
        if text is not None:
            values[parameter.name] = parameter.kind.read(parameter.name, text)
        elif parameter.required:
            raise invalid_field(parameter.name, "is required")
        else:
            values[parameter.name] = parameter.default
    if given:
        raise invalid_field(next(iter(given)), "is no parameter of this call")
    return values
