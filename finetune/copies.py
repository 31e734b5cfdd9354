"""Copies of a run's checkpoints elsewhere (`checkpoint.copy_to`): sent after each commit, found again when the run's own folder is lost.

The disk stays the place of work, and no step waits for a copy. Under URL/step-00000120 lie the files of the committed folder; its
`manifest.json` is sent last and removed first, and without one there is no checkpoint. docs/checkpoints.md has the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from finetune import checkpoint, files, remote
from finetune.checkpoint_state import parse_state
from finetune.config import Config
from finetune.errors import UserError
from finetune.events import Events
from finetune.lease import Lease
from finetune.remote import Found

MANIFEST = "manifest.json"
NAME = "copy"
"""Of temporary folders."""


@dataclass(frozen=True)
class _Copy:
    """A checkpoint on its way, under a second name: a later save may prune the first."""

    snapshot: Path
    sent: Future[None]


class Copies:
    """While open, sends what is committed, one checkpoint at a time, on a thread that it owns. On rank 0 alone; nothing here is collective.

    A copy that fails is told and counted and stops no run: the next save sends its own. Only the end needs the newest to have arrived.
    """

    def __init__(self, config: Config, is_main: bool) -> None:
        self._run_dir, self._keep = config.run.dir, config.checkpoint.keep
        self._url = config.checkpoint.copy_to if is_main else None
        self._open = ExitStack()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="copies")
        self._newest: str | None = None
        """Name of the checkpoint that was committed last."""
        self._due = False
        """Whether it is still to be sent."""
        self._running: _Copy | None = None
        self._problem: str | None = None
        """Of the last copy."""
        self._failures = 0
        self._passed_over = 0
        """Checkpoints that were not sent, because a newer one was there before their turn came."""

    def __enter__(self) -> Copies:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._thread.shutdown()  # a copy on its way arrives
        self._open.close()

    def open(self) -> None:
        """Take the place for this run. Raises `UserError` if it cannot be written to, or another run has it."""
        if self._url is not None:
            self._lease = self._open.enter_context(Lease(self._url, str(self._run_dir.absolute())))

    def catch_up(self, step: int) -> None:
        """Send the checkpoint that the run goes on from, if it is not there: the process before may not have come to it."""
        if self._url is not None:
            files.sweep(self._run_dir / "cache", NAME)
            self._newest, self._due = f"step-{step:08d}", step > 0

    def hear(self, kind: str, _step: int, facts: dict[str, Any]) -> None:
        """An event of the run: what is committed is to be sent, and what was committed before it, and not begun, no more."""
        if kind == "committed" and self._url is not None:
            self._passed_over += self._due
            self._newest, self._due = facts["folder"], True

    def advance(self, events: Events) -> None:
        """Tell what was sent, begin what is to be sent; never waits."""
        if self._running is not None and self._running.sent.done():
            done, self._running = self._running, None
            self._tell(done, events)
        if self._url is not None and self._due and self._running is None:
            self._begin(self._url, events)

    def finish(self, events: Events) -> None:
        """Wait until the newest is there; what fails is tried once more. Raises `UserError` if it does not get there."""
        for _ in range(2):
            self.advance(events)
            while self._running is not None:
                wait([self._running.sent])
                self.advance(events)
            if self._problem is None:
                return
            self._due = True
        raise UserError(
            f"checkpoint.copy_to: {self._newest} is not at {self._url}: {self._problem}. It is whole in {self._run_dir}; "
            "the same command sends it again"
        )

    def _begin(self, url: str, events: Events) -> None:
        assert self._newest is not None
        self._due = False
        try:
            committed = checkpoint.folder_of(self._run_dir) / self._newest
            snapshot = checkpoint.snapshot_of(committed, files.fresh_folder(self._run_dir / "cache", NAME))
        except (OSError, UserError) as error:  # what is left of it goes at the next start
            self._fail(str(error), self._newest, events)
            return
        self._running = _Copy(snapshot, self._thread.submit(self._send, snapshot, url))

    def _send(self, snapshot: Path, url: str) -> None:
        """On the thread."""
        self._lease.require()
        if not is_there(snapshot, url):
            remote.upload(snapshot, f"{url}/{snapshot.name}", MANIFEST)
        prune(url, self._keep, snapshot.name)

    def _tell(self, done: _Copy, events: Events) -> None:
        name, problem = done.snapshot.name, done.sent.exception()
        if problem is not None and not isinstance(problem, OSError | UserError):
            raise problem
        files.discard(done.snapshot.parent)
        if problem is not None:
            self._fail(str(problem), name, events)
            return
        self._problem = None
        events.note("copied", checkpoint.step_of(done.snapshot), folder=name, failures=self._failures, passed_over=self._passed_over)

    def _fail(self, problem: str, name: str, events: Events) -> None:
        self._problem, self._failures = problem, self._failures + 1
        events.say(f"warning: no copy of {name} (failure {self._failures}): {problem}; training goes on, and the next save sends its own")
        events.note("copy failed", int(name.removeprefix("step-")), problem=problem, failures=self._failures)


def copies_at(url: str) -> dict[str, dict[str, Found]]:
    """Checkpoint folders elsewhere, the newest first, with the files of each; one without MANIFEST is no checkpoint."""
    folders: dict[str, dict[str, Found]] = {}
    for path, found in remote.find(url).items():
        name, _, inside = path.partition("/")
        if inside and checkpoint.STEP_FOLDER.fullmatch(name):
            folders.setdefault(name, {})[inside] = found
    return dict(sorted(folders.items(), reverse=True))


def is_there(committed: Path, url: str) -> bool:
    """Whether this very checkpoint is complete elsewhere. Raises `UserError` if its name is taken by another run's."""
    target = f"{url}/{committed.name}"
    if MANIFEST not in remote.find(target):
        return False
    if remote.read(f"{target}/{MANIFEST}") == (committed / MANIFEST).read_bytes():
        return True
    state = _state(url, committed.name)
    if state is not None and checkpoint.differences(state, checkpoint.read_state(committed)):
        raise UserError(f"{target} is a checkpoint of another run; give this one another checkpoint.copy_to")
    return False


def prune(url: str, keep: int, newest: str) -> None:
    """Remove what the run's own folder would not keep either (see `checkpoint.prune`), and what a killed process left unfinished."""
    folders = copies_at(url)
    states = {name: state for name, inside in folders.items() if MANIFEST in inside and (state := _state(url, name)) is not None}
    unfinished = [name for name, inside in folders.items() if MANIFEST not in inside]
    for name in [*unfinished, *checkpoint.surplus(states, keep, newest)]:
        remote.remove(f"{url}/{name}", MANIFEST)


def _state(url: str, name: str) -> dict[str, Any] | None:
    """None for one that cannot be read, whose checkpoint neither counts nor goes."""
    try:
        return parse_state(remote.read(f"{url}/{name}/state.json"))
    except (UserError, ValueError):
        return None


def bring(url: str, run_dir: Path) -> tuple[Path | None, list[str]]:
    """The newest good copy, put into the run's folder, where no checkpoint is good; and what was wrong with those passed over."""
    folder = checkpoint.folder_of(run_dir)
    temporary = files.fresh_folder(folder, NAME)
    try:
        received, passed_over = _newest_good(url, copies_at(url), temporary)
        if received is None:
            return None, passed_over
        final = folder / received.name
        files.discard(final)  # damaged, or it would have been taken
        files.commit_folder(received, final)
    finally:
        files.discard(temporary)
    print(f"{run_dir} holds no good checkpoint; going on from {url}/{final.name}", flush=True)
    return final, passed_over


def fetch(url: str, step: int | None, folder: Path) -> Path:
    """A checkpoint elsewhere, brought into a temporary folder: of a `checkpoint.copy_to` the newest good one, or `step`; or that of a step.

    Raises `UserError` saying what is wrong with it.
    """
    above, name = url.rpartition("/")[0], remote.name_of(url)
    if checkpoint.STEP_FOLDER.fullmatch(name):
        if step is not None and name != f"step-{step:08d}":
            raise UserError(f"{url} is not of step {step}; drop the step, or give the URL above")
        url, wanted = above, name
    else:
        wanted = "" if step is None else f"step-{step:08d}"
    there = copies_at(url)
    folder = files.resolve_under(folder, "/".join(url.partition("://")[2].split("/")[-2:]))  # its name is told in what is made of it
    received, problems = _newest_good(url, {name: inside for name, inside in there.items() if wanted in ("", name)}, folder)
    if received is None:
        problems = [f"{url} holds no usable {wanted or 'checkpoint'}", *problems, f"there are: {', '.join(there) or 'none'}"]
        raise UserError("; ".join(problems))
    return received


def _newest_good(url: str, among: Mapping[str, dict[str, Found]], folder: Path) -> tuple[Path | None, list[str]]:
    """The first of `among` that arrives and verifies, and what was wrong with those before. Raises `UserError` if the network is."""
    passed_over: list[str] = []
    for name, inside in among.items():
        problem = _receive(f"{url}/{name}", inside, folder / name)
        if problem is None:
            return folder / name, passed_over
        passed_over.append(f"{url}/{name}: {problem}")
    return None, passed_over


def _receive(url: str, inside: Mapping[str, Found], path: Path) -> str | None:
    """Download a checkpoint; returns why it must not be used, or None. Raises `UserError` for one of a later format."""
    if MANIFEST not in inside:
        return f"it has no {MANIFEST}, so it was never whole"
    for name, found in inside.items():
        remote.download(f"{url}/{name}", found, files.resolve_under(path, name))
    checkpoint.refuse_newer(path)
    return checkpoint.problem_with(path)
