"""No minimum version and no locked version has a known vulnerability, unless the list says what contains it and what proves that."""

from __future__ import annotations

import ast
import re
import tomllib
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests import house

ROOT = Path(__file__).parents[2]
LIST = yaml.safe_load((ROOT / "locked" / "advisories.yaml").read_text(encoding="utf-8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCKS = sorted((ROOT / "locked").glob("*.txt"))


@dataclass(frozen=True)
class Advisory:
    package: str
    ids: tuple[str, ...]
    affected: tuple[SpecifierSet, ...]
    """Ranges of versions."""
    fixed: Version | None
    contained: str | None
    tests: tuple[str, ...]
    """`path::function`."""
    unused: str | None
    """A pattern that does not occur in the source."""

    def admits(self, requirement: Requirement) -> bool:
        """Whether an affected version satisfies a requirement that is a minimum or a pinned version."""
        pinned = [Version(one.version) for one in requirement.specifier if one.operator == "=="]
        if pinned:
            return any(self.affects(version) for version in pinned)
        floor = max((Version(one.version) for one in requirement.specifier if one.operator == ">="), default=Version("0"))
        return any(end is None or floor < end for end in map(find_end, self.affected))

    def affects(self, version: Version) -> bool:
        return any(each.contains(version, prereleases=True) for each in self.affected)


def find_end(affected: SpecifierSet) -> Version | None:
    """The first version after a range; None if it has no end."""
    return next((Version(one.version) for one in affected if one.operator == "<"), None)


def parse_advisory(entry: dict[str, Any]) -> Advisory:
    ids, affected = ([value] if isinstance(value, str) else value for value in (entry["id"], entry["affected"]))
    return Advisory(
        package=canonicalize_name(entry["package"]),
        ids=tuple(ids),
        affected=tuple(map(SpecifierSet, affected)),
        fixed=None if entry["fixed"] is None else Version(entry["fixed"]),
        contained=entry.get("contained"),
        tests=tuple(entry.get("tests", ())),
        unused=entry.get("unused"),
    )


ADVISORIES = [parse_advisory(entry) for entry in LIST["advisories"]]
CONTAINED = [each for each in ADVISORIES if each.contained]


def read_minimums() -> list[Requirement]:
    project = PROJECT["project"]
    listed = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    return [Requirement(line) for line in [*listed, *PROJECT["build-system"]["requires"]]]


def read_lock(path: Path) -> dict[str, Version]:
    found = re.findall(r"^([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==([^\s\\;]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {canonicalize_name(name): Version(version) for name, version in found}


def find_uncontained(advisories: list[Advisory], minimums: list[Requirement], locks: dict[str, dict[str, Version]]) -> list[str]:
    """A line for each minimum or locked version that an advisory affects, if nothing contains it."""
    open_ones = [each for each in advisories if not each.contained]
    of_minimums = [
        f"pyproject.toml: {requirement} admits a version with {each.ids[0]}; fixed: {each.fixed}"
        for each in open_ones
        for requirement in minimums
        if canonicalize_name(requirement.name) == each.package and each.admits(requirement)
    ]
    of_locks = [
        f"{name}: {each.package} {lock[each.package]} has {each.ids[0]}; fixed: {each.fixed}"
        for each in open_ones
        for name, lock in locks.items()
        if each.package in lock and each.affects(lock[each.package])
    ]
    return of_minimums + of_locks


@cache
def read_source() -> str:
    return "\n".join(house.read_house(ROOT).values())


def test_no_version_has_a_vulnerability_that_nothing_contains() -> None:
    locks = {path.name: read_lock(path) for path in LOCKS}
    assert len(locks) >= 7 and len(ADVISORIES) >= 90
    assert find_uncontained(ADVISORIES, read_minimums(), locks) == []


def make(affected: str, contained: str | None = None) -> Advisory:
    entry = {"package": "Pillow", "id": "CVE-1", "affected": affected, "fixed": "12.1.1", "contained": contained}
    return parse_advisory(entry)


@pytest.mark.parametrize(
    ("affected", "minimum", "locked", "lines"),
    [
        (">=10.3.0,<12.1.1", "pillow>=11.3", "12.3.0", 1),  # the minimum of an earlier pyproject.toml
        (">=10.3.0,<12.1.1", "pillow>=9.0", "12.3.0", 1),
        (">=10.3.0,<12.1.1", "pillow", "12.3.0", 1),
        (">=10.3.0,<12.1.1", "pillow>=12.1.1", "12.3.0", 0),
        (">=10.3.0,<12.1.1", "pillow>=12.1.1", "12.1.0", 1),
        (">=10.3.0,<12.1.1", "pillow==12.1.0", "12.1.0", 2),
        (">=10.3.0,<12.1.1", "pillow==9.0", "9.0", 0),
        ("<5.0.0rc3", "pillow>=5.0.0rc2", "5.0.0rc3", 1),
        (">=0", "pillow>=12.3", "12.3.0", 2),
    ],
)
def test_an_affected_version_is_noticed(affected: str, minimum: str, locked: str, lines: int) -> None:
    versions = {"main.txt": {"pillow": Version(locked), "other": Version("1.0")}}
    found = find_uncontained([make(affected)], [Requirement(minimum), Requirement("other>=1.0")], versions)
    assert len(found) == lines and all("CVE-1" in line for line in found)
    assert find_uncontained([make(affected, "No image is read.")], [Requirement(minimum)], versions) == []


def test_every_entry_is_whole() -> None:
    assert isinstance(LIST["read"], date)
    for entry, advisory in zip(LIST["advisories"], ADVISORIES, strict=True):
        assert set(entry) <= {"package", "id", "affected", "fixed", "published", "source", "contained", "tests", "unused"}, entry
        assert all(re.fullmatch(r"CVE-\d{4}-\d{4,}|GHSA(-\w{4}){3}", name) for name in advisory.ids), entry
        assert re.fullmatch(r"GHSA(-\w{4}){3}|PYSEC-\d{4}-\d+", entry["source"]), entry
        assert isinstance(entry.get("published", LIST["read"]), date) and entry.get("published", LIST["read"]) <= LIST["read"], entry
        assert (advisory.fixed is None) == (find_end(advisory.affected[-1]) is None), f"{entry}: a range without end, or none"
        assert advisory.fixed is None or (advisory.fixed == find_end(advisory.affected[-1]) and not advisory.affects(advisory.fixed)), entry
        assert bool(advisory.contained) == bool(advisory.tests or advisory.unused), f"{entry}: contained, and by what"
    ids = [name for each in ADVISORIES for name in each.ids]
    assert len(set(ids)) == len(ids)


def test_every_package_of_the_list_is_a_dependency() -> None:
    used = {canonicalize_name(each.name) for each in read_minimums()}.union(*map(read_lock, LOCKS))
    assert {each.package for each in ADVISORIES} <= used


@pytest.mark.parametrize("advisory", CONTAINED, ids=lambda each: each.ids[0])
def test_what_contains_a_vulnerability_is_there(advisory: Advisory) -> None:
    for name in advisory.tests:
        path, _, function = name.partition("::")
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, f"{name} does not exist"
    if advisory.unused is not None:
        found = re.search(advisory.unused, read_source())
        assert found is None, f"{advisory.ids[0]} is contained as long as this is not used: {found}"


def test_the_list_of_contained_ones_has_some_without_a_fix_and_some_of_transformers_4() -> None:
    assert len(CONTAINED) >= 14 and any(each.fixed is None for each in CONTAINED)
    by_id = {name: each for each in CONTAINED for name in each.ids}
    assert {"CVE-2026-4372", "CVE-2026-5241"} <= by_id.keys(), "the two that recipes/transformers_release.py names"
    chat = read_lock(ROOT / "locked" / "chat.txt")["transformers"]
    assert not by_id["CVE-2026-4372"].affects(chat) and not by_id["CVE-2026-5241"].affects(chat)


@pytest.mark.parametrize(
    ("pattern", "source"),
    [
        ("CVE-2026-9856", "tokenizer.save_pretrained(folder)"),
        ("CVE-2026-1839", "from transformers import Trainer"),
        ("CVE-2026-1839", "transformers.Trainer(model)"),
        ("CVE-2025-14926", "from transformers.models.sew.convert_sew_original_pytorch_checkpoint_to_pytorch import convert_config"),
        ("CVE-2025-14925", "accelerator.load_state(folder)"),
        ("CVE-2026-4538", "program = torch.export.load('model.pt2')"),
        ("CVE-2024-8966", "import gradio"),
        ("CVE-2024-10569", "from gradio import Dataframe"),
    ],
)
def test_a_use_is_found(pattern: str, source: str) -> None:
    (advisory,) = [each for each in CONTAINED if pattern in each.ids]
    assert advisory.unused is not None and re.search(advisory.unused, source)


def test_setuptools_builds_nothing() -> None:
    assert PROJECT["build-system"]["build-backend"] == "hatchling.build"
    assert [line for line in PROJECT["build-system"]["requires"] if "setuptools" in line] == []
    assert not any((ROOT / name).exists() for name in ("setup.py", "setup.cfg"))
