"""Heartbeat of every rank: detects a rank that has died or hangs, and ends all others with a message that says why.

When a rank dies, a collective fails immediately on gloo and late on NCCL; a rank that is reading data, evaluating or saving would never
notice. So a thread of each rank writes a heartbeat to the launcher's key-value store and checks its neighbour's. It is independent of the
main thread, so building an index or a long save does not interrupt it. Another thread checks that the store itself still responds.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import secrets
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import torch
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # public, but missing in the module's __all__

from overtone.finetune.addresses import hide_secrets
from overtone.finetune.distributed.process_group import World, broadcast_from_main, gather_from_ranks, sum_over_ranks
from overtone.finetune.errors import ElsewhereError, UserError
from overtone.finetune.hardware import host_memory
from overtone.finetune.monitoring import collective_progress, killed_rank_diagnosis, rank_status_records
from overtone.finetune.monitoring.peer_processes import Peers, ProcessExit, identify_process
from overtone.finetune.storage import files
from overtone.finetune.terminal import print_diagnostic

BEAT_SECONDS = 1.0
MISSING_SECONDS = 7.0
"""A rank without a heartbeat for this long is considered dead."""
PATIENCE_SECONDS = 3.0
"""Time for a rank to end by itself after another one has failed: it may be reporting the same failure."""
LOOK_SECONDS = 2.0
"""Seconds of the search for a dead process on this machine that may explain a failed collective or a signal."""
SIGNS_SECONDS = 2.0
"""Seconds between two status records of a rank."""
BROKEN = re.compile(r"(?i)connection|peer|socket|nccl|gloo|timed? ?out|store")
"""Matches the errors of a collective in which another rank is missing."""
TIMED_OUT = re.compile(r"(?i)timed? ?out")
"""Matches the errors of a collective for which another rank has not arrived in time."""
NOTICE_SECONDS = 300.0
"""A rank for which the others have waited this long is reported once: the timeout of the small collectives is hours."""
CRASHES = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL")


@dataclass(frozen=True)
class RunFailure:
    """The failure that ended the run, as reported by the rank that noticed it first."""

    message: str
    rank: int | None = None
    """Rank that failed, if it is known."""
    signal: str | None = None
    """Signal that ended that rank's process."""
    reason: str = "failed"
    """The reason in a word or two."""
    reported: bool = False
    """True if that rank reported the failure itself."""
    refused: bool = False
    """True if it is a `UserError`: a wrong config, missing data."""


class Heartbeat:
    """While open, all ranks end when any rank ends: immediately on the same machine, and otherwise within MISSING_SECONDS +
    PATIENCE_SECONDS + 3 beats. The remaining ranks record the reason, and each rank writes its status to the run's folder.

    Collective: open and close it on every rank.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._left = threading.Event()
        self._store: Store | None = None
        self._store_answers = True
        self._peers: Peers | None = None
        self._folder: Path | None = None
        self._training_thread = threading.get_ident()  # under Ray, not the process's main thread
        self._recorder: threading.Thread | None = None
        self._failure: RunFailure | None = None
        self._beats = 0
        self._kills_before = host_memory.out_of_memory_kills()
        self._collectives, self._collectives_since, self._noticed = 0, time.monotonic(), False
        self.step = 0
        """The last step of which this rank has seen an event."""
        self.on_failure: Callable[[RunFailure], None] = lambda _: None
        """Records a failure, once."""

    def __enter__(self) -> Heartbeat:
        if self._world.size > 1:
            client = TCPStore(
                os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=timedelta(seconds=MISSING_SECONDS)
            )
            self._store = PrefixStore(f"heartbeat {broadcast_from_main(self._world, secrets.token_hex(4))}", client)
            self._store.set(_beat_key(self._world.rank), "0")
            self._peers = Peers(
                self._world.rank,
                [(host, boot, space, process) for host, boot, space, process in gather_from_ranks(self._world, identify_process())],
            )
            sum_over_ranks(self._world, [0.0])  # a barrier: all keys must exist before a rank reads its neighbour's
            self._thread = threading.Thread(target=self._watch, args=(self._store,), name="heartbeat", daemon=True)
            self._thread.start()
            threading.Thread(target=self._watch_the_store, name="watch of the store", daemon=True).start()
            threading.Thread(target=self._watch_the_processes, args=(self._peers,), name="watch of the processes", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            if self._store is not None:
                sum_over_ranks(self._world, [0.0])  # a barrier: a rank that finishes early keeps watching the others
            self._stop()
            return
        failure = self.fail(error)
        in_order = self._store is None or (isinstance(error, UserError) and self._all_fail(self._store))
        if self._is_consequence(error, failure):
            self._end_now(failure, f"rank {self._world.rank} ends, because {failure.message}", 1)
        if self._world.is_main or not in_order:
            self._write_last_word(failure)
        if in_order:
            self._stop()
        # Otherwise the thread keeps running: it ends the process if the exception does not, for example because a disk hangs.

    def _is_consequence(self, error: BaseException, failure: RunFailure) -> bool:
        """Return True if `error` is a collective's and only follows from the run's first `failure`, whose message a traceback would hide.
        A rank that was paused and continues finds that the others have left, for example."""
        own = failure.reported and failure.rank == self._world.rank
        return self._store is not None and not own and isinstance(error, RuntimeError) and BROKEN.search(str(error)) is not None

    def _stop(self) -> None:
        self._left.set()
        if self._recorder is not None:
            self._recorder.join()
        if self._store is not None:
            self._thread.join()  # a thread that uses the store while the interpreter shuts down would abort the process
        if self._peers is not None:
            self._peers.close()

    def leave_traces_in(self, folder: Path, on_failure: Callable[[RunFailure], None]) -> None:
        """Start writing status records and tracebacks to `folder`, which this run must have locked; call `on_failure` with a failure."""
        self._folder, self.on_failure = folder, on_failure
        self._record_signs(folder)
        self._recorder = threading.Thread(target=self._keep_recording, args=(folder,), name="vital signs", daemon=True)
        self._recorder.start()

    def note_event(self, _kind: str, step: int, _facts: object) -> None:
        """Listener of the run's events: keeps the latest step."""
        self.step = max(self.step, step)

    def fail(self, error: BaseException) -> RunFailure:
        """Report to all ranks that this one is about to end, and write its traceback; returns the first failure of the run."""
        if self._failure is None:
            interrupted, refused = isinstance(error, KeyboardInterrupt), isinstance(error, UserError) and not hasattr(error, "reason")
            text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            text = "interrupted by Ctrl-C" if interrupted else hide_secrets(text)
            if self._world.size > 1 and not isinstance(error, ElsewhereError):  # whose message names the rank already
                text = f"rank {self._world.rank} failed: {text}"
            own = RunFailure(
                text,
                rank=self._world.rank,
                signal="SIGINT" if interrupted else None,
                reason=getattr(error, "reason", "failed"),
                reported=True,
                refused=refused,
            )
            if self._folder is not None and not isinstance(error, ElsewhereError):
                text = str(error) if isinstance(error, UserError) else "".join(traceback.format_exception(error))
                with contextlib.suppress(OSError, UserError):  # the disk may be what failed
                    record = f"{time.strftime('%F %T')}\n{hide_secrets(text)}\n"
                    files.write_text(self._folder / f"failure-rank-{self._world.rank}.txt", record)
            broken = isinstance(error, RuntimeError) and BROKEN.search(str(error)) is not None
            if broken and TIMED_OUT.search(str(error)):
                own = self._find_late_rank() or own
            self._failure = self._first_failure(own, self._count_looking_seconds() if broken else 0.0)
        return self._failure

    def end_by_signal(self, number: int) -> None:
        """End this process on a signal that arrives outside of the training steps; records the failure of the rank that may have caused
        it."""
        name = signal.Signals(number).name
        failure = self._first_failure(RunFailure(f"rank {self._world.rank} was ended by {name}", self._world.rank, name), LOOK_SECONDS)
        own = failure.signal == name and failure.rank == self._world.rank
        self._end_now(failure, failure.message if own else f"rank {self._world.rank} was ended by {name}: {failure.message}", 128 + number)

    def _count_looking_seconds(self) -> float:
        """Return how long to search for the rank whose death broke a collective: its connections close before its process has ended, and on
        another machine only its missing heartbeat shows it."""
        near = self._peers is None or self._peers.all_near
        return LOOK_SECONDS if near else MISSING_SECONDS + 3 * BEAT_SECONDS

    def _first_failure(self, own: RunFailure, seconds: float) -> RunFailure:
        """The first failure of the run: one that another rank has reported, the death of a process, or this rank's `own`."""
        if self._store is None or self._peers is None:
            return own
        deadline = time.monotonic() + seconds
        while (reported := self._reported(self._store)) is None:
            if self._peers.wait(0.05 if seconds else 0.0):
                own = self._describe_deaths(self._peers.deaths)
                break
            if time.monotonic() >= deadline:
                break
        return reported or self._first(self._store, own)

    def _reported(self, store: Store) -> RunFailure | None:
        try:
            if self._store_answers and store.check(["gone"]):
                return RunFailure(**json.loads(store.get("gone")))
        except RuntimeError:  # the process that hosted the store has ended; each further request would print a C++ trace
            self._store_answers = False
        return None

    def _describe_deaths(self, deaths: Sequence[ProcessExit]) -> RunFailure:
        """Describes the first death that the launcher did not cause: it sends SIGTERM to all ranks when one has died."""
        death = min(deaths, key=lambda each: each.signal == "SIGTERM")
        signs = None if self._folder is None else rank_status_records.read_status(self._folder, death.rank)
        who = f"rank {death.rank} (process {death.process} on {platform.node()})"
        if death.code is not None:
            return RunFailure(f"{who} exited with code {death.code} and without a message", death.rank)
        cause = "likely out of memory, unless somebody sent the signal" if signs is None else killed_rank_diagnosis.explain_kill(signs)
        reached = max(self.step, 0 if signs is None else signs.step)
        where = f"after step {reached}" if reached else "before its first step"
        if death.signal is None:
            return RunFailure(
                f"{who} ended {where} for an unknown reason (see the launcher's output); if it was killed: {cause}", death.rank
            )
        if death.signal == "SIGABRT" and signs is not None and signs.stalled_seconds >= collective_progress.STALLED_SECONDS:
            # NCCL's watchdog ends a process whose collective has timed out, with a message only in the launcher's output.
            late = self._find_late_rank()
            if late is not None:
                return late
        if death.signal != "SIGKILL":
            crash = ": a crash inside a library" if death.signal in CRASHES else ""
            return RunFailure(f"{who} was ended by {death.signal}{crash}", death.rank, death.signal)
        return RunFailure(f"{who} was killed (SIGKILL) {where}: {cause}", death.rank, "SIGKILL")

    def _write_last_word(self, failure: RunFailure) -> None:
        with contextlib.suppress(Exception):  # a full disk must not keep the process alive
            self.on_failure(failure)

    def _find_late_rank(self) -> RunFailure | None:
        """The failure of the rank for which the others waited in a collective that timed out; None if the records do not show it."""
        if self._folder is None:
            return None
        self._record_signs(self._folder)
        statuses = self._read_statuses(self._folder)
        late = collective_progress.describe_missing(statuses)
        if late is None:
            return None
        return RunFailure(f"a collective timed out: {late}", collective_progress.find_missing(statuses)[0].rank, reason="timed out")

    def _read_statuses(self, folder: Path) -> list[rank_status_records.RankStatus]:
        """Records of the ranks of this launch; an earlier one may have had more."""
        return [status for status in rank_status_records.read_all_statuses(folder) if status.rank < self._world.size]

    def _notice_stall(self, folder: Path) -> None:
        """Report once for which rank the others wait, on the first of those that wait."""
        if self._noticed or time.monotonic() - self._collectives_since < NOTICE_SECONDS:
            return
        self._noticed = True
        statuses = self._read_statuses(folder)
        missing = {status.rank for status in collective_progress.find_missing(statuses)}
        late, waiting = collective_progress.describe_missing(statuses), [each.rank for each in statuses if each.rank not in missing]
        if late is not None and waiting[0] == self._world.rank:
            print_diagnostic(f"note: the ranks have waited for {NOTICE_SECONDS:.0f} s: {late}")

    def _record_signs(self, folder: Path) -> None:
        device = self._world.device
        started = collective_progress.count_collectives()
        if started != self._collectives:
            self._collectives, self._collectives_since, self._noticed = started, time.monotonic(), False
        signs = rank_status_records.RankStatus(
            rank=self._world.rank,
            ranks=self._world.size,
            host=platform.node(),
            boot=rank_status_records.boot_id(),
            process=os.getpid(),
            step=self.step,
            peak_gib=rank_status_records.peak_gib(),
            gpu_peak_gib=torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else None,
            out_of_memory_kills=self._kills_before,
            host_memory_gib=host_memory.host_memory() / host_memory.GIB,
            time=time.time(),
            collectives=started,
            stalled_seconds=time.monotonic() - self._collectives_since,
            place=collective_progress.locate_thread(self._training_thread),
        )
        with contextlib.suppress(OSError, UserError):  # a missing status record must not end a run
            rank_status_records.write_status(folder, signs)

    def _keep_recording(self, folder: Path) -> None:
        while not self._left.wait(SIGNS_SECONDS):
            self._record_signs(folder)
            self._notice_stall(folder)

    def _all_fail(self, store: Store) -> bool:
        """Return whether all ranks end with the same user error."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        with contextlib.suppress(RuntimeError):  # the process that hosted the store has ended
            failed = store.add("failed", 1)
            while failed < self._world.size and time.monotonic() < deadline:
                time.sleep(0.05)
                failed = store.add("failed", 0)
            return failed == self._world.size
        return False

    def _first(self, store: Store, own: RunFailure) -> RunFailure:
        """The first failure that any rank has reported; `own` if there is none yet."""
        if not self._store_answers:
            return own
        try:
            return RunFailure(**json.loads(store.compare_set("gone", "", json.dumps(asdict(own)))))
        except RuntimeError:  # the process that hosted the store has ended
            return own

    def _watch(self, store: Store) -> None:
        watched = (self._world.rank + 1) % self._world.size
        seen, changed = b"", time.monotonic()
        while not self._left.wait(BEAT_SECONDS):
            self._beats += 1
            try:
                store.set(_beat_key(self._world.rank), str(self._beats))
                if store.check(["gone"]):
                    return self._end(RunFailure(**json.loads(store.get("gone"))), PATIENCE_SECONDS)
                latest = store.get(_beat_key(watched))
            except RuntimeError as error:
                return self._end(
                    self._first_failure(RunFailure(f"the launcher's store does not respond: {error}"), LOOK_SECONDS), PATIENCE_SECONDS
                )
            if latest != seen:
                seen, changed = latest, time.monotonic()
            elif time.monotonic() - changed > MISSING_SECONDS:
                return self._end(self._first(store, self._describe_silent_rank(watched)), 0.0)
        return None

    def _describe_silent_rank(self, rank: int) -> RunFailure:
        """The failure of a rank without heartbeats: on another machine, or hanging."""
        signs = None if self._folder is None else rank_status_records.read_status(self._folder, rank)
        what = (
            ""
            if signs is None
            else f" on {signs.host}, after step {signs.step}; if it was killed: {killed_rank_diagnosis.explain_kill(signs)}"
        )
        return RunFailure(f"rank {rank} is missing: no heartbeat for {MISSING_SECONDS:.0f} s{what}", rank)

    def _watch_the_processes(self, peers: Peers) -> None:
        while not self._left.is_set():
            if peers.wait(BEAT_SECONDS):
                if not self._left.wait(BEAT_SECONDS):  # after a normal end this rank would have left by now
                    self._end(self._first_failure(self._describe_deaths(peers.deaths), 0.0), PATIENCE_SECONDS)
                return

    def _watch_the_store(self) -> None:
        """A machine that hangs, or is disconnected, closes no connection, so a request to its store would block forever."""
        seen, silent = 0, 0.0
        while self._thread.is_alive():
            time.sleep(BEAT_SECONDS)
            silent, seen = 0.0 if self._beats != seen else silent + BEAT_SECONDS, self._beats
            if silent > MISSING_SECONDS:
                self._end(RunFailure(f"the launcher's store does not respond: no reply for {MISSING_SECONDS:.0f} s"), 0.0)

    def _end(self, failure: RunFailure, patience: float) -> None:
        if self._left.wait(patience):
            return
        self._end_now(failure, f"rank {self._world.rank} ends, because {failure.message}", 1)

    def _end_now(self, failure: RunFailure, message: str, code: int) -> NoReturn:
        self._write_last_word(failure)
        with contextlib.suppress(OSError, ValueError):  # the terminal or pipe may be closed
            print_diagnostic(f"error: {message}")
            sys.stdout.flush()
        os._exit(code)  # sys.exit would not end a process whose main thread waits in a collective


def _beat_key(rank: int) -> str:
    return f"beat {rank}"
