"""A sign of life from every rank, so that nobody waits for one that is gone.

A dead peer breaks a collective that others are in, at once on gloo and late on NCCL; who reads data, evaluates or saves meanwhile would
learn of it never. So a thread of each rank beats over the launcher's key-value store and watches its neighbour. It needs nothing of the
main thread: building an index or a long save does not silence it. Another one sees to it that the store itself still answers.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import TracebackType

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]  # public, but missing in the module's __all__

from finetune import files
from finetune.errors import ElsewhereError, UserError
from finetune.world import World, share, sums

BEAT_SECONDS = 1.0
MISSING_SECONDS = 7.0
"""A rank that is silent for so long is taken for dead."""
PATIENCE_SECONDS = 3.0
"""How long a rank may take to end by itself once it knows that another has failed: it may be telling the same failure."""


class Heartbeat:
    """While open, the end of any rank is the end of all: within MISSING_SECONDS + PATIENCE_SECONDS + 3 beats, wherever they are.

    Collective: open and close it on every rank. In a world of one it does nothing.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._left = threading.Event()
        self._store: Store | None = None
        self._folder: Path | None = None
        self._word: Callable[[str], None] = lambda _: None
        self._reason: str | None = None
        self._beats = 0

    def __enter__(self) -> Heartbeat:
        if self._world.size > 1:
            client = TCPStore(
                os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=timedelta(seconds=MISSING_SECONDS)
            )
            self._store = PrefixStore(f"heartbeat {share(self._world, secrets.token_hex(4))}", client)
            self._store.set(_beat_of(self._world.rank), "0")
            sums(self._world, [0.0])  # every key is there before anyone reads its neighbour's
            self._thread = threading.Thread(target=self._watch, args=(self._store,), name="heartbeat", daemon=True)
            self._thread.start()
            threading.Thread(target=self._watch_the_store, name="watch of the store", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._store is None:
            return
        if error is None:
            sums(self._world, [0.0])  # who is done early goes on watching the others
            self._stop()
            return
        self.fail(error)
        if isinstance(error, UserError) and self._all_tell(self._store):
            self._stop()
        # Otherwise the thread stays: it ends the process if this exception does not get it to its end, as a stalled disk may prevent.

    def _stop(self) -> None:
        self._left.set()
        self._thread.join()  # a thread that is inside the store when the interpreter goes aborts the process

    def leave_traces_in(self, folder: Path, word: Callable[[str], None]) -> None:
        """From now on tracebacks are kept in `folder`, which this run must own, and `word` is told what ends a rank that cannot."""
        self._folder, self._word = folder, word

    def fail(self, error: BaseException) -> str:
        """Tell all ranks that this one is about to end, and keep its traceback; returns the first failure of the run, in one line."""
        if self._reason is None:
            own = f"rank {self._world.rank} failed: {type(error).__name__}: {error}"
            if self._folder is not None and not isinstance(error, ElsewhereError):
                text = str(error) if isinstance(error, UserError) else "".join(traceback.format_exception(error))
                files.write_text(self._folder / f"failure-rank-{self._world.rank}.txt", f"{time.strftime('%F %T')}\n{text}\n")
            self._reason = own if self._store is None else self._first(self._store, own)
        return self._reason

    def _all_tell(self, store: Store) -> bool:
        """Whether all ranks end alike, with a mistake that all of them have seen."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        with contextlib.suppress(RuntimeError):  # the store went with the rank that held it
            told = store.add("told", 1)
            while told < self._world.size and time.monotonic() < deadline:
                time.sleep(0.05)
                told = store.add("told", 0)
            return told == self._world.size
        return False

    def _first(self, store: Store, own: str) -> str:
        """Of all failures that ranks report, the one that came first."""
        try:
            return store.compare_set("gone", "", own).decode()
        except RuntimeError:  # the store went with the rank or the launcher that held it
            return own

    def _watch(self, store: Store) -> None:
        watched = (self._world.rank + 1) % self._world.size
        seen, changed = b"", time.monotonic()
        while not self._left.wait(BEAT_SECONDS):
            self._beats += 1
            try:
                store.set(_beat_of(self._world.rank), str(self._beats))
                if store.check(["gone"]):
                    return self._end(store.get("gone").decode(), PATIENCE_SECONDS)
                latest = store.get(_beat_of(watched))
            except RuntimeError as error:
                return self._end(f"the launcher's store does not answer: {error}", PATIENCE_SECONDS)
            if latest != seen:
                seen, changed = latest, time.monotonic()
            elif time.monotonic() - changed > MISSING_SECONDS:
                return self._end(self._first(store, f"rank {watched} is missing: no sign of life for {MISSING_SECONDS:.0f} s"), 0.0)
        return None

    def _watch_the_store(self) -> None:
        """A machine that stands still, or whose network is gone, closes no connection: who asks its store waits without an end."""
        seen, silent = 0, 0.0
        while self._thread.is_alive():
            time.sleep(BEAT_SECONDS)
            silent, seen = 0.0 if self._beats != seen else silent + BEAT_SECONDS, self._beats
            if silent > MISSING_SECONDS:
                self._end(f"the launcher's store does not answer: no word for {MISSING_SECONDS:.0f} s", 0.0)

    def _end(self, loss: str, patience: float) -> None:
        if self._left.wait(patience):
            return
        print(f"error: rank {self._world.rank} ends, because {loss}", file=sys.stderr, flush=True)
        with contextlib.suppress(Exception):  # a full disk must not keep the process alive
            self._word(loss)
        sys.stdout.flush()
        os._exit(1)  # nothing less ends a process whose main thread waits in a collective


def _beat_of(rank: int) -> str:
    return f"beat {rank}"
