"""Remote copies of checkpoints (`checkpoint.copy_to`): uploaded after each commit, downloaded when the run's local folder is lost.

Training works on the local disk, and no step waits for an upload. URL/step-00000120 contains the files of the committed folder; its
`manifest.json` is uploaded last and removed first, so a folder without one is not a checkpoint. docs/checkpoints.md describes the
behaviour.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from pydantic import JsonValue

from overtone.finetune.addresses import RemoteAddress
from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.checkpointing.checkpoint_metadata import parse_state
from overtone.finetune.checkpointing.late_evaluations import complete_state
from overtone.finetune.checkpointing.remote_lease import Lease
from overtone.finetune.checkpointing.retention import Keep
from overtone.finetune.config import Checkpoint
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_logger import Events
from overtone.finetune.recipe import CheckpointState
from overtone.finetune.storage import files, input_files, remote
from overtone.finetune.storage.remote import RemoteFile
from overtone.finetune.terminal import print_line

MANIFEST = "manifest.json"
NAME = "copy"
"""Name of temporary folders."""


@dataclass(frozen=True)
class _Copy:
    """A checkpoint that is being uploaded from a hard-linked snapshot, because a later save may prune the original."""

    snapshot: Path
    sent: Future[None]


class Copies:
    """While open, uploads committed checkpoints, one at a time, on its own thread. Works on rank 0 only; nothing here is collective.

    A failed upload is logged and counted, and does not stop the run: the next save uploads its own checkpoint. At the end of the run the
    newest one must have been uploaded.
    """

    def __init__(self, run_dir: Path, settings: Checkpoint, is_main: bool) -> None:
        self._run_dir, self._keep = run_dir, settings.keep
        self._url = settings.copy_to if is_main else None
        self._open = ExitStack()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="copies")
        self._newest: str | None = None
        """Name of the checkpoint that was committed last."""
        self._due = False
        """True if its upload has not started yet."""
        self._running: _Copy | None = None
        self._problem: str | None = None
        """Error of the last upload."""
        self._failures = 0
        self._passed_over = 0
        """Checkpoints that were never uploaded, because a newer one was committed first."""

    def __enter__(self) -> Copies:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._thread.shutdown()  # waits for the current upload
        self._open.close()

    def open(self) -> None:
        """Lock the URL for this run. Raises `UserError` if it cannot be written to, or another run has locked it."""
        if self._url is not None:
            self._lease = self._open.enter_context(Lease(self._url, str(self._run_dir.absolute())))

    def schedule_upload(self, step: int) -> None:
        """Schedule the upload of the checkpoint that the run resumes from: the previous process may not have uploaded it."""
        if self._url is not None:
            files.remove_unfinished(self._run_dir / "cache", NAME)
            self._newest, self._due = f"step-{step:08d}", step > 0

    def handle_event(self, kind: str, _step: int, facts: dict[str, JsonValue]) -> None:
        """Listener of the run's events: schedules a committed checkpoint, in place of an older one whose upload has not started."""
        if kind == "committed" and self._url is not None:
            self._passed_over += self._due
            self._newest, self._due = str(facts["folder"]), True

    def advance(self, events: Events) -> None:
        """Report a finished upload and start the next one; never blocks."""
        if self._running is not None and self._running.sent.done():
            done, self._running = self._running, None
            self._report_upload(done, events)
        if self._url is not None and self._due and self._running is None:
            self._begin(self._url, events)

    def finish(self, events: Events) -> None:
        """Wait until the newest checkpoint is uploaded, with one retry. Raises `UserError` if that fails."""
        for _ in range(2):
            self.advance(events)
            while self._running is not None:
                wait([self._running.sent])
                self.advance(events)
            if self._problem is None:
                return
            self._due = True
        raise UserError(
            f"checkpoint.copy_to: {self._newest} was not copied to {self._url}: {self._problem}. It is complete in {self._run_dir}; "
            "the same command uploads it again"
        )

    def _begin(self, url: RemoteAddress, events: Events) -> None:
        assert self._newest is not None
        self._due = False
        try:
            committed = checkpoint.folder_of(self._run_dir) / self._newest
            snapshot = checkpoint.link_snapshot(committed, files.fresh_folder(self._run_dir / "cache", NAME))
        except (OSError, UserError) as error:  # the next launch removes what it leaves
            self._fail(str(error), self._newest, events)
            return
        self._running = _Copy(snapshot, self._thread.submit(self._send, snapshot, url))

    def _send(self, snapshot: Path, url: RemoteAddress) -> None:
        """Runs on the upload thread."""
        self._lease.require()
        if not has_complete_copy(snapshot, url):
            remote.upload(snapshot, url.child(snapshot.name), MANIFEST)
        prune(url, self._keep, snapshot.name, self._run_dir)

    def _report_upload(self, done: _Copy, events: Events) -> None:
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
        events.say(f"warning: {name} was not copied (failure {self._failures}): {problem}; training continues, and the next save retries")
        events.note("copy failed", int(name.removeprefix("step-")), problem=problem, failures=self._failures)


def list_copies(url: RemoteAddress) -> dict[str, dict[str, RemoteFile]]:
    """Remote checkpoint folders, the newest first, with the files of each; a folder without MANIFEST is not a checkpoint."""
    folders: dict[str, dict[str, RemoteFile]] = {}
    for path, found in remote.list_files(url).items():
        name, _, inside = path.partition("/")
        if inside and checkpoint.STEP_FOLDER.fullmatch(name):
            folders.setdefault(name, {})[inside] = found
    return dict(sorted(folders.items(), reverse=True))


def has_complete_copy(committed: Path, url: RemoteAddress) -> bool:
    """Return whether a complete remote copy of this checkpoint exists. Raises `UserError` if another run has a checkpoint of that name
    there."""
    target = url.child(committed.name)
    if MANIFEST not in remote.list_files(target):
        return False
    if remote.read(target.child(MANIFEST)) == input_files.read_bytes(committed / MANIFEST):
        return True
    state = _read_remote_state(url, committed.name)
    if state is not None and checkpoint.find_differences(state, checkpoint.read_state(committed)):
        raise UserError(f"{target} is a checkpoint of another run; choose another checkpoint.copy_to for this run")
    return False


def prune(url: RemoteAddress, keep: Keep, newest: str, run_dir: Path) -> None:
    """Remove remote checkpoints by the rule of the local folder (finetune/checkpointing/checkpoint.py), and incomplete uploads. `run_dir`:
    the local one, which has the measurements of samples and the late evaluations."""
    folders = list_copies(url)
    states = {
        name: complete_state(checkpoint.folder_of(run_dir) / name, state)
        for name, inside in folders.items()
        if MANIFEST in inside and (state := _read_remote_state(url, name)) is not None
    }
    unfinished = [name for name, inside in folders.items() if MANIFEST not in inside]
    for name in [*unfinished, *checkpoint.choose_surplus(states, keep, newest, run_dir)]:
        remote.remove(url.child(name), MANIFEST)


def _read_remote_state(url: RemoteAddress, name: str) -> CheckpointState | None:
    """`state.json` of a remote checkpoint; None if it cannot be read, and then the checkpoint is neither counted nor removed."""
    try:
        return parse_state(remote.read(url.child(f"{name}/state.json")))
    except (UserError, ValueError):
        return None


def download_newest(url: RemoteAddress, run_dir: Path) -> tuple[Path | None, list[str]]:
    """Download the newest valid copy into the run's folder, which has no valid checkpoint; also the problems of the skipped copies."""
    folder = checkpoint.folder_of(run_dir)
    temporary = files.fresh_folder(folder, NAME)
    try:
        received, passed_over = _download_newest_valid(url, list_copies(url), temporary)
        if received is None:
            return None, passed_over
        final = folder / received.name
        files.discard(final)  # a local one of that name is damaged, or it would have been used
        files.commit_folder(received, final)
    finally:
        files.discard(temporary)
    print_line(f"{run_dir} contains no valid checkpoint; resuming from {url.child(final.name)}")
    return final, passed_over


def download_checkpoint(url: RemoteAddress, step: int | None, folder: Path) -> Path:
    """Download a remote checkpoint into a temporary folder. `url`: that of a `checkpoint.copy_to` (for its newest valid checkpoint, or
    that of `step`), or of one checkpoint in it.

    Raises `UserError` with the problems found.
    """
    above, name = url.parent, url.name
    if checkpoint.STEP_FOLDER.fullmatch(name):
        if step is not None and name != f"step-{step:08d}":
            raise UserError(f"{url} is not of step {step}; drop the step, or give the parent URL")
        url, wanted = above, name
    else:
        wanted = "" if step is None else f"step-{step:08d}"
    there = list_copies(url)
    # The last two parts of the address are kept, which an export records.
    folder = files.resolve_under(folder, "/".join(filter(None, (url.parent.name, url.name))))
    received, problems = _download_newest_valid(url, {name: inside for name, inside in there.items() if wanted in ("", name)}, folder)
    if received is None:
        problems = [f"{url} contains no valid {wanted or 'checkpoint'}", *problems, f"existing: {', '.join(there) or 'none'}"]
        raise UserError("; ".join(problems))
    return received


def _download_newest_valid(url: RemoteAddress, among: Mapping[str, dict[str, RemoteFile]], folder: Path) -> tuple[Path | None, list[str]]:
    """Download the first valid one of `among`; also the problems of those before it. Raises `UserError` for network errors."""
    passed_over: list[str] = []
    for name, inside in among.items():
        problem = _download_copy(url.child(name), inside, folder / name)
        if problem is None:
            return folder / name, passed_over
        passed_over.append(f"{url.child(name)}: {problem}")
    return None, passed_over


def _download_copy(url: RemoteAddress, inside: Mapping[str, RemoteFile], path: Path) -> str | None:
    """Download a checkpoint; returns why it must not be used, or None. Raises `UserError` for one of a later format."""
    if MANIFEST not in inside:
        return f"it has no {MANIFEST}, so its upload was not finished"
    for name, found in inside.items():
        remote.download(url.child(name), found, files.resolve_under(path, name))
    checkpoint.refuse_newer(path)
    return checkpoint.find_problem(path)
