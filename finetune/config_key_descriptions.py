"""Config keys: the type, default, and documentation of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, get_args, get_origin

from pydantic import BaseModel

from overtone.finetune.addresses import RemoteAddress


def fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """(dotted key, type and default, documentation) of every key."""
    for name, info in model.model_fields.items():
        section = section_of(info.annotation)
        if section is not None:
            yield from fields(section, f"{prefix}{name}.")
        else:
            default = "required" if info.is_required() else f"default {_format_default(info.get_default(call_default_factory=True))}"
            yield f"{prefix}{name}", f"{_type_name(info.annotation)}, {default}", info.description or ""


def section_of(annotation: object) -> type[BaseModel] | None:
    """Return the config section that a key of this type holds; None for a plain value."""
    if get_origin(annotation) is tuple:  # a list of sections is one key
        return None
    candidates = [annotation, *get_args(annotation)]
    found = [kind for kind in candidates if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not BaseModel]
    return found[0] if found else None


def _format_default(value: object) -> str:
    """A default as YAML writes it."""
    if isinstance(value, tuple):
        return f"[{', '.join(str(each) for each in value)}]"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _type_name(annotation: object) -> str:
    """The type of a key, as `path | URL | list of path or URL | null`."""
    if get_origin(annotation) is Annotated:
        return _type_name(get_args(annotation)[0])
    if get_origin(annotation) is tuple:
        return f"list of {_type_name(get_args(annotation)[0]).replace(' | ', ' or ')}"
    if choices := get_args(annotation):
        return " | ".join(choice if isinstance(choice, str) else _type_name(choice) for choice in choices)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"{{{', '.join(annotation.model_fields)}}}"
    if annotation is RemoteAddress:
        return "URL"
    return "null" if annotation is type(None) else getattr(annotation, "__name__", str(annotation)).lower()
