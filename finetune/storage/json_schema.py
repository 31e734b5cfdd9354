"""Models of JSON that comes from a file: strict, and errors name the invalid key."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

SHOWN = 60
"""Characters of an invalid value that a message shows."""

ModelT = TypeVar("ModelT", bound=BaseModel)


class JsonPart(BaseModel):
    """A part of a JSON file. Unknown keys are kept: a later version of the same format may have added them."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


def parse_model(model: type[ModelT], value: object) -> ModelT:
    """Return the value as a `model`. Raises `ValueError` naming the first invalid key."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first, *more = error.errors(include_url=False)
        key = ".".join(str(part) for part in first["loc"]) or "the whole of it"
        found = "" if first["type"] == "missing" else f" (found {shorten_value(first['input'])})"
        rest = f", and {len(more)} more" if more else ""
        raise ValueError(f"{shorten_value(key)[1:-1]}: {first['msg']}{found}{rest}") from None


def validate_json(model: type[BaseModel], value: object) -> dict[str, Any]:
    """Return the value with every key of `model`. Raises `ValueError` naming the first invalid key."""
    return parse_model(model, value).model_dump()


def shorten_value(value: object) -> str:
    """Return a value from a file for a message, as ASCII, at most `SHOWN` characters."""
    text = ascii(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
