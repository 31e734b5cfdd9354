"""Config help and config errors: the documentation of each key, and validation errors in plain words with the nearest valid key."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails


def fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """(dotted key, type and default, documentation) of every key."""
    for name, info in model.model_fields.items():
        section = _section_of(info.annotation)
        if section is not None:
            yield from fields(section, f"{prefix}{name}.")
        else:
            default = "required" if info.is_required() else f"default {info.get_default(call_default_factory=True)}"
            yield f"{prefix}{name}", f"{_type_name(info.annotation)}, {default}", info.description or ""


def explain(problem: ErrorDetails, model: type[BaseModel], origins: dict[str, str]) -> str:
    """A validation error as one sentence: file and line, the key, and the expected value or the nearest valid key."""
    location = [str(part) for part in problem["loc"]]
    key = ".".join(location)
    inner = (origins[known] for known in origins if known.startswith(f"{key}."))
    place = next((origins[known] for known in _prefixes(location) if known in origins), next(inner, "the defaults"))
    if problem["type"] == "extra_forbidden":
        near = _nearest(model, location)
        hint = f"; did you mean {near}?" if near else f"; sections are {', '.join(model.model_fields)}"
        return f"{place}: unknown key {key}{hint}"
    return f"{place}: {key} = {problem['input']!r}: {problem['msg']}"


def _nearest(model: type[BaseModel], location: list[str]) -> str | None:
    """A close match in the same section, otherwise a close match in any section, otherwise a distant match in the same section."""
    siblings = {name: ".".join([*location[:-1], name]) for name in _known_keys(model, location[:-1])}
    anywhere = {key.rpartition(".")[2]: key for key, *_ in reversed(list(fields(model)))}
    for keys, cutoff in ((siblings, 0.8), (anywhere, 0.8), (siblings, 0.5)):
        if near := difflib.get_close_matches(location[-1], keys, n=1, cutoff=cutoff):
            return keys[near[0]]
    return None


def _prefixes(location: list[str]) -> Iterator[str]:
    for end in range(len(location), 0, -1):
        yield ".".join(location[:end])


def _known_keys(model: type[BaseModel], path: list[str]) -> list[str]:
    for name in path:
        info = model.model_fields.get(name)
        section = _section_of(info.annotation) if info else None
        if section is None:
            return []
        model = section
    return list(model.model_fields)


def _section_of(annotation: Any) -> type[BaseModel] | None:
    candidates = [annotation, *get_args(annotation)]
    found = [kind for kind in candidates if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not BaseModel]
    return found[0] if found else None


def _type_name(annotation: Any) -> str:
    if hasattr(annotation, "__metadata__"):
        return _type_name(annotation.__origin__)
    choices = get_args(annotation)
    if choices and all(isinstance(choice, str) for choice in choices):
        return " | ".join(choices)
    if choices:
        return " | ".join("null" if kind is type(None) else _type_name(kind) for kind in choices if kind is not Ellipsis)
    return getattr(annotation, "__name__", str(annotation)).lower()
