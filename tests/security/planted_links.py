"""Runs verbs on folders in which somebody has planted links at the names that the verbs write, which a trace of an earlier run found."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import overtone.data_prep.__main__
import overtone.finetune.__main__
from overtone.__main__ import STUDIO
from overtone.finetune.storage import files
from tests import loopback
from tests.finetune import fork_server

ROOT = Path(__file__).parents[2]
TRACED = Path(__file__).with_name("traced")
START = (
    "import runpy, sys; from tests.security.traced import sitecustomize; sitecustomize.begin_trace(); sys.argv = sys.argv[1:]; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)
CONTENT = "precious\n"
RANDOM = re.compile(rf"{re.escape(files.TEMPORARY)}|{re.escape(files.TRASH)}|/\.seen-|tfevents|/[0-9]{{10}}\.[0-9]+")
"""Parts of names that nobody can foresee: random digits, or the time and the process."""
TRIES = 80
SECONDS = 600
"""Limit on a server; the machine may be busy."""
Command = Callable[[Path, dict[str, str], list[str]], subprocess.CompletedProcess[str]]


def prepare_nothing(_: Path) -> None:
    """For a verb that starts in an empty folder, or in what the case before it has left."""


@dataclass(frozen=True)
class Case:
    """One run of a verb: what it starts from, and its command line, relative to that folder."""

    verb: tuple[str, str]
    """Package and verb."""
    words: tuple[str, ...]
    prepare: Callable[[Path], object] = prepare_nothing
    """Fills the folder in which the verb is started."""
    after: str | None = None
    """The case whose folder this one continues."""
    code: int | None = 0
    """Exit code without links; None: whichever."""
    planted: tuple[str, ...] = ()
    """More names to plant links at: with a random part, as a killed process leaves them, and which no trace can foresee."""
    writes: bool = True
    """False: the verb must change nothing in its folder."""
    run: Command | None = None
    """How to run it; None: as a command that ends by itself."""


@dataclass(frozen=True)
class Trace:
    """A run of a case without links."""

    state: Path
    """What it started from."""
    result: Path
    code: int
    names: tuple[str, ...]
    """Below the folder: what it creates, changes or deletes, and a stranger can foresee."""


@dataclass
class Sweep:
    """What became of the names."""

    refused: list[str] = field(default_factory=list)
    """With the name of the link."""
    otherwise: list[str] = field(default_factory=list)
    """The folder or the file was refused for another reason."""
    kept: list[str] = field(default_factory=list)
    """The link was replaced by the verb's own file, deleted, or left alone."""


class Workshop:
    """Traces cases, each once, in a folder of its own."""

    def __init__(self, home: Path, cases: Mapping[str, Case]) -> None:
        self._home, self._cases = home, cases
        self.trace = cache(self._trace)

    def _trace(self, name: str) -> Trace:
        """The trace of a case. Fails if something in its folder has changed that the trace does not name."""
        case, home = self._cases[name], self._home / name.replace(" ", "-")
        state, result, notes = home / "state", home / "result", home / "notes"
        if case.after is None:
            state.mkdir(parents=True)
        else:
            shutil.copytree(self.trace(case.after).result, state, symlinks=True)
        case.prepare(state)
        shutil.copytree(state, result, symlinks=True)
        done = run_traced(case, result, notes)
        assert case.code in (None, done.returncode), f"{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stdout + done.stderr, f"{done.stdout}{done.stderr}"
        noted = set(notes.read_text("utf-8", "surrogateescape").split("\n")) - {""}
        before, after = snapshot(state), snapshot(result)
        changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
        # A folder that appears by a rename brings its content along.
        unseen = {path for path in changed if not {path, *list_parents(path)} & noted}
        assert not unseen, f"changed without a trace: {sorted(unseen)}"
        assert case.writes == bool(noted), f"{name} changes {sorted(noted)}"
        named = {part for word in case.words for part in (word, *list_parents(word))}
        names = {part for path in noted | changed if not is_random(path) for part in (path, *list_parents(path))}
        return Trace(state, result, done.returncode, tuple(sorted((names | {*case.planted}) - named)))


def run_traced(case: Case, folder: Path, notes: Path) -> subprocess.CompletedProcess[str]:
    """Run the verb in `folder`, with a trace of what it changes there."""
    path = os.pathsep.join([str(TRACED), str(ROOT)])
    env = {**os.environ, "PYTHONPATH": path, "TRACE_TO": str(notes), "TRACE_ROOT": str(folder), "OMP_NUM_THREADS": "1"}
    env |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONDONTWRITEBYTECODE": "1"}
    notes.touch()
    words = ["-c", START, *case.verb, *case.words]
    return (run_command if case.run is None else case.run)(folder, env, words)


def run_command(folder: Path, env: dict[str, str], words: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself, in a process of the fork server."""
    return fork_server.run_command(*words, env=env, cwd=folder)


def run_server(folder: Path, env: dict[str, str], words: list[str], use: Callable[[str], object]) -> subprocess.CompletedProcess[str]:
    """Run a server with a free port in place of the word `PORT`, call `use(url)` when it has said that it listens, and stop it."""
    port = loopback.free_port()
    command = [sys.executable, *(str(port) if word == "PORT" else word for word in words)]
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    lines = list[str]()
    try:
        for line in process.stdout:
            lines.append(line)
            if f"http://127.0.0.1:{port}" in line:
                use(f"http://127.0.0.1:{port}")
                process.terminate()
        code = process.wait(SECONDS)
    finally:
        process.kill()
    return subprocess.CompletedProcess(words, code, "".join(lines), "")


def is_random(name: str) -> bool:
    return RANDOM.search(name) is not None


def list_parents(name: str) -> list[str]:
    return [str(path) for path in Path(name).parents if str(path) not in (".", "/")]


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Mode and content of everything below a folder, links not followed; without the times."""
    found = dict[str, tuple[int, bytes]]()
    for place, folders, names in os.walk(folder):
        for name in [*folders, *names]:
            path = Path(place) / name
            mode = path.lstat().st_mode
            content = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
            found[str(path.relative_to(folder))] = mode, content
    return found


def make_precious(folder: Path) -> Path:
    """What the links lead to: a file, and a folder with names that verbs sweep."""
    (folder / "inner").mkdir(parents=True)
    for name in ("file", "inner/file", f"inner/.step-00000009{files.TEMPORARY}1", "inner/a.index", "inner/a.samples", "inner/train.jsonl"):
        (folder / name).write_text(CONTENT)
        (folder / name).chmod(0o640)
    left = folder / "inner" / f".step-00000001{files.TEMPORARY}00000000"
    left.mkdir()
    (left / "file").write_text(CONTENT)
    for place in (folder, folder / "inner", left):
        place.chmod(0o755)
    return folder


def plant(folder: Path, name: str, precious: Path, is_folder: bool) -> bool:
    """Put a link at the name, in place of what is there; returns False if the name is below another link."""
    path = folder / name
    if any((folder / above).is_symlink() for above in list_parents(name)):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.symlink_to(precious / ("inner" if is_folder else "file"))
    return True


def sweep(case: Case, traced: Trace, folder: Path) -> Sweep:
    """Run the case with links at many names, then again without the link that it refused, until it refuses none. A name below a link is
    tried once that link is settled. Fails if anything that a link leads to has changed, and if the verb fails for no reason."""
    precious = make_precious(folder / "precious")
    untouched, found = snapshot(precious), Sweep()
    pending = sorted(traced.names, key=lambda name: (name.count("/"), name))
    folders = {name for name in pending if (traced.result / name).is_dir() or (traced.state / name).is_dir() or is_random(name)}
    most = len(pending)
    for number in range(TRIES):
        if not pending:
            return found
        attempt = folder / f"attempt-{number}"
        shutil.copytree(traced.state, attempt, symlinks=True)
        # Where the folder is absent, its existence alone can be the reason to refuse: these names are tried apart.
        absent = {name for name in pending if not (traced.state / name).parent.is_dir()}
        candidates = [name for name in pending if name not in absent] or pending
        tried = [name for name in candidates[:most] if plant(attempt, name, precious, name in folders)]
        done = run_traced(case, attempt, folder / f"notes-{number}")
        output = done.stdout + done.stderr
        assert snapshot(precious) == untouched, f"{tried}: changed through a link\n{output}"
        assert "Traceback" not in output, f"{tried}\n{output}"
        refused = [name for name in tried if f"{name} is a link to " in output]
        settled = refused or tried
        if refused:
            found.refused += refused
        elif done.returncode == traced.code:
            found.kept += tried
        else:  # for another reason: a file that cannot be read, or a folder that another program seems to have made
            error = next((line for line in output.split("\n") if line.startswith("error: ")), None)
            assert done.returncode == 2 and error is not None, f"{tried}: ended with {done.returncode}\n{output}"
            settled = [name for name in tried if name in error] or (tried if len(tried) == 1 or tried[0] in absent else [])
            found.otherwise += settled
        most = max(1, len(tried) // 2) if not settled else len(pending)
        pending = [name for name in pending if name not in settled]
        shutil.rmtree(attempt)
    raise AssertionError(f"{pending} are left after {TRIES} runs")


def list_verbs() -> set[tuple[str, str]]:
    """All verbs, of the tables of the two packages, and the studio."""
    tables = {"data_prep": overtone.data_prep.__main__.VERBS, "finetune": overtone.finetune.__main__.VERBS}
    return {("overtone", STUDIO), *((package, verb) for package, verbs in tables.items() for verb in verbs)}
