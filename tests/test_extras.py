"""The extras of pyproject.toml: those that messages and pages name exist, and those of the README bring what they should."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
NAMED = re.compile(r"(?:overtone|[ '\"`]\.)\[([a-z0-9, -]+)\]")
"""`overtone[voice,serve]` and `.[text]`, in a message or a command."""
FOLDERS = ("finetune", "data_prep", "recipes", "docs", "configs")
FILES = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".md", ".sh", ".yaml", ".html")]
FILES += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def unknown(text: str) -> list[str]:
    """Extras that a text names and pyproject.toml does not have."""
    return [extra for names in NAMED.findall(text) for extra in names.replace(" ", "").split(",") if extra not in EXTRAS]


def test_every_extra_that_is_named_exists() -> None:
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in FILES}
    naming = {path for path, text in texts.items() if NAMED.search(text)}
    assert len(naming) >= 12 and {"README.md", "finetune/storage/remote.py", "recipes/speech/serving/serve_command.py"} <= naming
    assert {path: wrong for path, text in texts.items() if (wrong := unknown(text))} == {}


def test_an_unknown_extra_is_found() -> None:
    assert unknown("install with: pip install 'overtone[voice,servce]'") == ["servce"]
    assert unknown("pip install -e '.[voise]'") == ["voise"] and unknown("`.[voice, text]`, re.compile('.[a-z]')") == ["a-z"]


def installed(extras: set[str]) -> set[str]:
    """Names of the packages that `pip install .[extras]` brings on this machine."""
    found: dict[str, set[str]] = {}
    pending = [Requirement(each) for name in ("", *extras) for each in (EXTRAS[name] if name else project_dependencies())]
    while pending:
        requirement = pending.pop()
        name, wanted = canonicalize_name(requirement.name), requirement.extras
        if name == "overtone":
            pending += [Requirement(each) for extra in wanted for each in EXTRAS[extra]]
            continue
        if name in found and wanted <= found[name]:
            continue
        found[name] = found.get(name, set()) | wanted
        try:
            below = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # of another platform or another build of torch
        pending += [each for each in map(Requirement, below) if each.marker is None or applies(each, found[name])]
    return set(found)


def applies(requirement: Requirement, extras: set[str]) -> bool:
    assert requirement.marker is not None
    return any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras))


def project_dependencies() -> list[str]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]


@pytest.mark.parametrize("page", ["README.md", "docs/several_machines.md"])
def test_the_installation_for_a_gpu_brings_neither_ray_nor_s3_nor_the_tests(page: str) -> None:
    lines = [line for line in (ROOT / page).read_text(encoding="utf-8").splitlines() if line.startswith("pip install") and ".[" in line]
    assert lines
    extras = {extra for line in lines for names in NAMED.findall(line) for extra in names.split(",")}
    assert "voice" in extras
    unwanted = {"ray", "s3fs", "boto3", "moto", "pytest", "mypy", "playwright", "openai"}
    assert not installed(extras) & unwanted
    assert {"torch", "qwen-tts", "openai-whisper"} <= installed(extras) and unwanted <= installed({"ray", "s3", "test"})
