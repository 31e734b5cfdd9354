"""The files of a release are those of one commit, and a tree that is not ready is refused."""

from __future__ import annotations

import json
import re
import subprocess
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from overtone.finetune.errors import UserError
from overtone.version import __version__
from workshop import release

ROOT = Path(__file__).parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository that is ready for the release of 0.3.0."""
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n## Unreleased\n\n## 0.3.0 (2026-12-01)\n")
    (tmp_path / "CITATION.cff").write_text("version: 0.3.0\n")
    git(tmp_path, "init", "-q")
    commit(tmp_path)
    return tmp_path


def git(tree: Path, *words: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@example.com", *words], cwd=tree, check=True)


def commit(tree: Path) -> None:
    git(tree, "add", "-A")
    git(tree, "commit", "-qm", "Change")


def test_a_ready_tree_passes_and_its_commit_is_exported(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    release.check_tree(tree, "0.3.0")
    (tree / "left_over.txt").write_text("not in git")
    exported = release.export_commit(tree, tmp_path_factory.mktemp("out"))
    assert sorted(path.name for path in exported.iterdir()) == ["CHANGELOG.md", "CITATION.cff"]


def test_each_missing_step_is_named(tree: Path) -> None:
    with pytest.raises(UserError, match=r"CHANGELOG.md has no section `## 0.4.0"):
        release.check_tree(tree, "0.4.0")
    (tree / "CITATION.cff").write_text("version: 0.2.0\n")
    with pytest.raises(UserError, match="1 files differ from the commit"):
        release.check_tree(tree, "0.3.0")
    commit(tree)
    with pytest.raises(UserError, match="CITATION.cff does not have `version: 0.3.0`"):
        release.check_tree(tree, "0.3.0")
    git(tree, "tag", "v0.3.0")
    with pytest.raises(UserError, match="the tag v0.3.0 exists"):
        release.check_tree(tree, "0.3.0")


def test_the_sums_are_those_that_sha256sum_checks(tmp_path: Path) -> None:
    (tmp_path / "a b.whl").write_bytes(b"wheel")
    (tmp_path / "c.json").write_bytes(b"{}")
    release.write_sums(tmp_path)
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, check=True, capture_output=True)


def test_a_package_without_a_licence_gets_one_or_is_named(tmp_path: Path) -> None:
    sbom = tmp_path / "sbom-voice.cdx.json"
    declared = {"name": "numpy", "licenses": [{"license": {"id": "BSD-3-Clause"}}]}
    sbom.write_text(json.dumps({"components": [declared, {"name": "snac"}]}))
    release.add_licences(sbom)
    first, second = json.loads(sbom.read_text(encoding="utf-8"))["components"]
    assert first == declared and second["licenses"] == [{"license": {"acknowledgement": "concluded", "id": "MIT"}}]
    sbom.write_text(json.dumps({"components": [{"name": "nobody-knows"}]}))
    with pytest.raises(UserError, match="nobody-knows have no licence"):
        release.add_licences(sbom)


@pytest.mark.parametrize("name", release.LICENCES)
def test_the_licence_is_that_of_the_file_in_the_wheel(name: str) -> None:
    words = {
        "Apache-2.0": "apache (license|2.0)",
        "MIT": "mit license",
        "BSD-2-Clause": "bsd 2-clause",
        "BSD-3-Clause": "neither the name of",
    }
    files = [file for file in metadata.files(name) or () if file.name.startswith("LICENSE") and file.parts[0].endswith(".dist-info")]
    (text,) = (" ".join(file.locate().read_text(encoding="utf-8").split()).casefold() for file in files)
    assert re.search(words[release.LICENCES[name]], text)


def test_a_failing_tool_is_a_sentence_with_its_output() -> None:
    with pytest.raises(UserError, match=r"git failed:\n.*not a git command"):
        release.run("git", "no-such-command")


def test_the_citation_and_the_workflows_are_those_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__ and citation["cff-version"] == "1.2.0" and citation["authors"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {*re.findall(r"^([\w-]+):", makefile, re.MULTILINE)}
    for name in ("checks", "weekly"):
        jobs = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text(encoding="utf-8"))["jobs"]
        assert {*jobs["make"]["strategy"]["matrix"]["target"]} <= targets
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    run = re.search(r"for target in ([\w -]+);", script)
    checks = yaml.safe_load((ROOT / ".github" / "workflows" / "checks.yml").read_text(encoding="utf-8"))
    assert run is not None and {*run[1].split()} <= {*checks["jobs"]["make"]["strategy"]["matrix"]["target"]}
