"""Mutation runner: applies each mutant to a copy of the tree and runs its test. Exits with 1 if a mutant survives or no longer applies.

usage: python -m workshop.mutations [--fresh] [WORDS]   only mutants that contain WORDS in file, test or fault

Outcomes are kept in runs/mutants.json until a file of the tree changes, so that an interrupted run resumes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from workshop.mutations.mutants import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "runs" / "mutants.json"
LIMIT_SECONDS = 600
"""Time limit of one test. A mutant that makes its test hang counts as killed."""
MEMORY = 8 << 30
"""Bytes of data of each process of a test: a mutant that removes a limit on memory would otherwise take all that the machine has."""
KILLED, SURVIVED, LOST = "killed", "SURVIVED", "LOST"
TESTS_FAILED = 1
"""pytest's exit code if tests failed; codes above 1 mean that it ran no tests."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m workshop.mutations", description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("words", nargs="?", default="", help="only mutants that contain these words in file, test or fault")
    parser.add_argument("--fresh", action="store_true", help="ignore the outcomes of earlier runs")
    options = parser.parse_args(argv)
    chosen = [mutant for mutant in MUTANTS if options.words in f"{mutant.file} {mutant.test} {mutant.fault}"]
    if not chosen:
        sys.exit(f"none of the {len(MUTANTS)} mutants contains {options.words!r} in its file, test or fault")
    digest = tree_digest()
    outcomes = {} if options.fresh else remembered(digest)
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        tree = Path(temporary) / "tree"
        if todo := [mutant for mutant in chosen if key_of(mutant) not in outcomes]:
            copy_tree(tree)
            require_green(tree, todo)
        for number, mutant in enumerate(todo, start=1):
            began = time.monotonic()
            outcomes[key_of(mutant)] = outcome = try_out(tree, mutant)
            print(f"[{number}/{len(todo)}] {outcome} ({time.monotonic() - began:.0f} s)  {mutant.file}: {mutant.fault}", flush=True)
            remember(digest, outcomes)
    print(table(chosen, outcomes))
    return int(any(outcomes[key_of(mutant)] != KILLED for mutant in chosen))


def listed() -> list[str]:
    """Files of the tree: tracked ones, and untracked ones that git does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted(name for name in set(names) if name and (ROOT / name).is_file())


def tree_digest() -> str:
    total = hashlib.sha256()
    for name in listed():
        total.update(f"{name} {hashlib.sha256((ROOT / name).read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def key_of(mutant: Mutant) -> str:
    return hashlib.sha256(json.dumps(mutant).encode()).hexdigest()


def remembered(tree: str) -> dict[str, str]:
    """Outcomes of earlier runs by mutant; empty if the tree has changed since."""
    kept = json.loads(KEPT.read_text()) if KEPT.is_file() else {}
    return kept["outcomes"] if kept.get("tree") == tree else {}


def remember(tree: str, outcomes: dict[str, str]) -> None:
    KEPT.parent.mkdir(exist_ok=True)
    partial = KEPT.with_suffix(".partial")
    partial.write_text(json.dumps({"tree": tree, "outcomes": outcomes}, indent=1))
    partial.replace(KEPT)


def copy_tree(to: Path) -> None:
    for name in listed():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, to / name)
    for link in (ROOT / "overtone").iterdir():  # the folders that are imported below that name
        if link.is_symlink():
            (to / "overtone" / link.name).symlink_to(link.readlink())


def require_green(tree: Path, mutants: list[Mutant]) -> None:
    """Exit if a test fails without a mutant: its failure would prove nothing."""
    tests = sorted({mutant.test for mutant in mutants})
    print(f"running {len(tests)} tests without mutants …", flush=True)
    code, output = run(tree, *tests)
    if code:
        sys.exit(f"the tests fail without a mutant (pytest exited with {code}); make them pass first:\n{output[-4000:]}")


def try_out(tree: Path, mutant: Mutant) -> str:
    """Apply a mutant, run its test, and restore the file; returns the outcome."""
    path = tree / mutant.file
    source = path.read_text(encoding="utf-8") if path.is_file() else ""
    if source.count(mutant.old) != 1:
        return f"{LOST}: the old text occurs {source.count(mutant.old)} times in {mutant.file}"
    path.write_text(source.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        code, output = run(tree, mutant.test)
    except subprocess.TimeoutExpired:
        return KILLED
    finally:
        path.write_text(source, encoding="utf-8")
    if code == TESTS_FAILED:
        return KILLED
    return SURVIVED if code == 0 else f"{LOST}: pytest exited with {code}: {output.strip().splitlines()[-1]}"


def run(tree: Path, *tests: str) -> tuple[int, str]:
    """Exit code and output of pytest in a tree. No bytecode is written: a mutant's could pass for the next one's, if their files have the
    same size and were written within the same second."""
    environ = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", *tests]
    done = subprocess.run(
        command, cwd=tree, env=environ, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False, preexec_fn=limit_memory
    )
    return done.returncode, done.stdout + done.stderr


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))


def table(mutants: list[Mutant], outcomes: dict[str, str]) -> str:
    lines = [f"| {mutant.file} | {mutant.fault} | {outcomes[key_of(mutant)]} |" for mutant in mutants]
    killed = sum(outcomes[key_of(mutant)] == KILLED for mutant in mutants)
    return "\n".join(["| file | fault | outcome |", "|---|---|---|", *lines, f"{killed} of {len(mutants)} mutants were killed"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
