"""Values that a JSON Schema of the OpenAPI document describes, and ones that it does not.

Knows the words that msgspec writes into schemas, and no others: an unknown type is an error.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

ITEMS_MAX = 3
TEXT_MAX = 12
INTEGER_MAX = 2**63

RUBBISH: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-INTEGER_MAX, INTEGER_MAX) | st.text(max_size=TEXT_MAX)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=ITEMS_MAX)
    | st.dictionaries(st.text(max_size=TEXT_MAX), inner, max_size=ITEMS_MAX),
    max_leaves=5,
)  # fmt: skip


class Schemas:
    """Strategies for the schemas of one document."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._components: dict[str, Any] = document["components"]["schemas"]

    def values(self, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
        """Generate what a schema describes, within small sizes."""
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            return st.deferred(lambda: self.values(self._components[name]))
        if "enum" in schema:
            return st.sampled_from(schema["enum"])
        for word in ("anyOf", "oneOf"):
            if word in schema:
                return st.one_of(*map(self.values, schema[word]))
        if "type" not in schema:
            return RUBBISH
        strategy: st.SearchStrategy[Any] = getattr(self, f"_{schema['type']}")(schema)
        return strategy

    def _null(self, _schema: dict[str, Any]) -> st.SearchStrategy[Any]:
        return st.none()

    def _boolean(self, _schema: dict[str, Any]) -> st.SearchStrategy[Any]:
        return st.booleans()

    def _integer(self, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
        least, most = schema.get("minimum", -INTEGER_MAX), schema.get("maximum", INTEGER_MAX)
        small = st.integers(least, min(most, max(least, 0) + 20))
        return small | st.integers(least, most)

    def _number(self, _schema: dict[str, Any]) -> st.SearchStrategy[Any]:
        return st.floats(allow_nan=False, allow_infinity=False) | st.integers(-1_000, 1_000)

    def _string(self, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
        if "pattern" in schema:
            return st.from_regex(schema["pattern"].rstrip("$") + r"\Z")
        least = schema.get("minLength", 0)
        most = max(least, min(schema.get("maxLength", TEXT_MAX), TEXT_MAX))
        letters = st.text("abcdefghij-0123456789", min_size=max(least, 1), max_size=most)
        return letters | st.text(min_size=least, max_size=most)

    def _array(self, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
        least = schema.get("minItems", 0)
        return st.lists(
            self.values(schema["items"]), min_size=least, max_size=max(least, ITEMS_MAX)
        )

    def _object(self, schema: dict[str, Any]) -> st.SearchStrategy[Any]:
        fields = {name: self.values(field) for name, field in schema.get("properties", {}).items()}
        required = {name: fields.pop(name) for name in schema.get("required", [])}
        if not required and not fields:
            return st.dictionaries(st.text(max_size=TEXT_MAX), RUBBISH, max_size=ITEMS_MAX)
        return st.fixed_dictionaries(required, optional=fields)


@st.composite
def spoiled(draw: st.DrawFn, good: Any) -> Any:
    """Generate what `good` is not any more: a field lost, another one's value, or one too many."""
    if not isinstance(good, dict) or draw(st.integers(0, 5)) == 0:
        return draw(RUBBISH)
    names = sorted(good)
    way = draw(st.sampled_from(("lost", "other", "unknown") if names else ("unknown",)))
    if way == "unknown":
        return good | {draw(st.text(max_size=TEXT_MAX)): draw(RUBBISH)}
    name = draw(st.sampled_from(names))
    rest = {field: value for field, value in good.items() if field != name}
    return rest if way == "lost" else rest | {name: draw(RUBBISH)}
