"""Digest of everything that cached samples depend on besides the rows: recipe, options, tokenizer files, source code and libraries."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pydantic import BaseModel

from overtone.finetune.recipe import Loaded, find_recipe
from overtone.finetune.storage import files

DESCRIBING = ("*.json", "*.txt", "*.model", "*.tiktoken", "*.codes", "**/*.jinja")
"""Files of a base that can affect a sample: configs, tokenizers and templates, but not weights."""
CODE = tuple(Path(__file__).resolve().parents[2] / name for name in ("finetune", "data_prep", "recipes"))
"""Folders of this project's own code."""
LIBRARIES = ("torch", "numpy", "transformers", "tokenizers", "jinja2", "sentencepiece", "tiktoken", "mistral_common")
"""Distributions whose version can affect how a row is read."""


def data_key(recipe: str, options: BaseModel, loaded: Loaded) -> str:
    """Return the digest of everything that samples depend on besides the rows: the recipe, its options and state, the base's tokenizer
    files, and the code.

    It does not include the weights, so `overtone plan --show-batch` need not read them.
    """
    chosen = [recipe, options.model_dump_json(), json.dumps(loaded.state.as_json(), sort_keys=True)]
    paths = sorted({path for pattern in DESCRIBING for path in loaded.base.glob(pattern)})
    base = [f"{path.name} {files.digest(path)}" for path in paths]
    versions = [f"{name} {_version(name)}" for name in loaded.libraries]
    return hashlib.sha256("\n".join([*chosen, *base, *versions, code_version(find_recipe(recipe))]).encode()).hexdigest()


def code_version(recipe: Path) -> str:
    """Return the digest of the source of this project and of the recipe in this folder, and of the versions of the libraries that read
    text."""
    libraries = " ".join(f"{name} {_version(name)}" for name in LIBRARIES)
    outside = [] if recipe.is_relative_to(CODE[-1]) else digest_sources(recipe)
    return hashlib.sha256("\n".join([libraries, *_digest_own_sources(), *outside]).encode()).hexdigest()


@cache
def _digest_own_sources() -> list[str]:
    """Read once: a process runs the code that it has imported, and 500 files take a tenth of a second."""
    return [line for folder in CODE for line in digest_sources(folder)]


def digest_sources(folder: Path) -> list[str]:
    """Relative path and digest of each Python file below the folder."""
    return [f"{path.relative_to(folder)} {files.digest(path)}" for path in sorted(folder.rglob("*.py"))]


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "none"
