"""Build the files of a release in dist/: sdist, wheel, an SBOM of each environment, SHA256SUMS. docs/releasing.md has the whole list.

usage: python -m workshop.release
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from overtone.finetune.errors import UserError, run_program
from overtone.finetune.terminal import print_line
from overtone.version import __version__

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "dist"
TOOLS = ROOT / ".venv-tools" / "bin"
ENVIRONMENTS = {"voice": ROOT / ".venv", "chat": ROOT / ".venv-chat"}
LICENCES = {
    "asttokens": "Apache-2.0",
    "liger_kernel": "BSD-2-Clause",
    "protobuf": "BSD-3-Clause",
    "ray": "Apache-2.0",
    "snac": "MIT",
    "tiktoken": "MIT",
}
"""Package → SPDX identifier, for packages whose metadata has none that cyclonedx-py reads. The source is the file LICENSE in the wheel."""
HATCH = "import hatchling.build, sys; hatchling.build.build_sdist(sys.argv[1]); hatchling.build.build_wheel(sys.argv[1])"


def main(_: list[str]) -> int:
    check_tree(ROOT, __version__)
    shutil.rmtree(TARGET, ignore_errors=True)
    TARGET.mkdir()
    with tempfile.TemporaryDirectory() as folder:
        tree = export_commit(ROOT, Path(folder))
        run(sys.executable, "-c", HATCH, TARGET, cwd=tree)
    packages = sorted(TARGET.iterdir())
    run(TOOLS / "twine", "check", "--strict", *packages)
    for name, environment in ENVIRONMENTS.items():
        sbom = TARGET / f"sbom-{name}.cdx.json"
        run(TOOLS / "cyclonedx-py", "environment", "--output-reproducible", "--output-file", sbom, environment / "bin" / "python")
        add_licences(sbom)
    write_sums(TARGET)
    for path in sorted(TARGET.iterdir()):
        print_line(f"{path.relative_to(ROOT)}: {path.stat().st_size:,} bytes")
    return 0


def check_tree(root: Path, version: str) -> None:
    """Raises `UserError` for a tree with changes, a version that was released, or one that the changelog and the citation do not name."""
    if changed := run("git", "status", "--porcelain", cwd=root):
        raise UserError(f"{root}: {len(changed.splitlines())} files differ from the commit; commit or remove them, then build again")
    if run("git", "tag", "--list", f"v{version}", cwd=root):
        raise UserError(f"the tag v{version} exists; raise the version in overtone/version.py")
    if not re.search(rf"^## {re.escape(version)} ", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE):
        raise UserError(f"CHANGELOG.md has no section `## {version} (DATE)`; rename Unreleased")
    if not re.search(rf"^version: {re.escape(version)}$", (root / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE):
        raise UserError(f"CITATION.cff does not have `version: {version}`")


def export_commit(root: Path, folder: Path) -> Path:
    """Write the files of the commit to a folder, and return it: what git does not have must not be in a release."""
    archive = folder / "tree.tar"
    run("git", "archive", "--output", archive, "HEAD", cwd=root)
    with tarfile.open(archive) as files:
        files.extractall(folder / "tree", filter="tar")
    return folder / "tree"


def add_licences(sbom: Path) -> None:
    """Add the licences that the metadata of packages lacks, by `LICENCES`. Raises `UserError` for a package without any."""
    content = json.loads(sbom.read_text(encoding="utf-8"))
    bare = {component["name"]: component for component in content["components"] if not component.get("licenses")}
    if unknown := sorted(bare.keys() - LICENCES.keys()):
        raise UserError(f"{sbom.name}: {', '.join(unknown)} have no licence in their metadata; add it to LICENCES in workshop/release.py")
    for name, component in bare.items():
        component["licenses"] = [{"license": {"acknowledgement": "concluded", "id": LICENCES[name]}}]
    sbom.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_sums(folder: Path) -> None:
    """Write the digest of each file, as `sha256sum --check` reads it."""
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(folder.iterdir())]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def run(*command: object, cwd: Path = ROOT) -> str:
    """Run a program and return what it printed. Raises `UserError` with its message if it fails."""
    done = subprocess.run([str(each) for each in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise UserError(f"{command[0]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(run_program(main))
