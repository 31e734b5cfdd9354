"""Values in a model's config.json that no model has, found before a library builds a model from them.

transformers takes them as they are: it would fail later with a traceback, or fill the memory with an entry for each label, or a module for
each layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import JsonValue


MOST = (
    (re.compile(r"num_labels"), 100_000),
    (re.compile(r"(\w+_)?layers"), 10_000),
    (re.compile(r"(\w+_)?(heads|codebooks|quantizers|filters|groups)"), 100_000),
    (re.compile(r"(\w+_)?(size|dim|dimension|positions|position_embeddings)"), 2**31),
)
"""Names of keys whose values are numbers of something, and the largest values; the first that matches counts. They are far above those of
published models."""
SHARE = re.compile(r"(\w+_)?(dropout|layerdrop|pdrop|drop_rate|drop_path_rate)(_\w+)?")
"""Names of keys whose values are probabilities."""
EPSILON = re.compile(r"(\w+_)?eps(ilon)?")
DTYPE_KEYS = ("torch_dtype", "dtype")
DTYPES = frozenset({"auto", "float", "double", "half", "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"})
OTHER_CONFIGS = frozenset({"quantization_config", "compression_config"})
"""Nested configs that do not describe a part of the model, with meanings of their own for these keys."""


def find_impossible_value(config: Mapping[str, JsonValue], place: str = "") -> str | None:
    """`key.key: value, and what is expected` of the first value that no model has, in a config and in the configs of its parts; None if
    there is none."""
    return next(_find_impossible_values(config, place), None)


def _find_impossible_values(config: Mapping[str, JsonValue], place: str) -> Iterator[str]:
    for key, value in config.items():
        if isinstance(value, dict) and key.endswith("_config") and key not in OTHER_CONFIGS:
            yield from _find_impossible_values(value, f"{place}{key}.")
        number = value if isinstance(value, int | float) and not isinstance(value, bool) else None
        most = next((most for name, most in MOST if name.fullmatch(key)), None)
        if most is not None and number is not None and not 0 <= number <= most:
            yield f"{place}{key}: {value}, expected 0 to {most:,}"
        elif SHARE.fullmatch(key) and number is not None and not 0 <= number <= 1:
            yield f"{place}{key}: {value}, expected a probability from 0 to 1"
        elif EPSILON.fullmatch(key) and value is not None and number is None:
            yield f"{place}{key}: {value!r}, expected a number"
        elif key in DTYPE_KEYS and not (value is None or (isinstance(value, str) and value.removeprefix("torch.") in DTYPES)):
            yield f"{place}{key}: {value!r}, expected a floating-point type of torch, such as float32"
        elif key == "pruned_heads" and value:
            yield f"{place}{key}: {value!r}, expected none: models with removed attention heads are not supported"
