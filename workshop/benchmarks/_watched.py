"""The memory that a piece of work needs, looked at while it runs."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

from workshop.benchmarks.order import anonymous_kib


def report_peak(work: Callable[[], object]) -> None:
    """Do it, and print one line of JSON: the peak of this process' anonymous memory above what it is now, in bytes; seconds of its
    processors; how often the memory was looked at."""
    seen, done = [anonymous_kib()], threading.Event()

    def watch() -> None:
        while not done.wait(0.002):
            seen.append(anonymous_kib())

    watcher = threading.Thread(target=watch)
    watcher.start()
    began = time.process_time()
    try:
        work()
    finally:  # a watcher that still runs keeps a process alive whose work has failed
        done.set()
        watcher.join()
    seconds = time.process_time() - began
    print(json.dumps({"above_imports": (max(seen) - seen[0]) * 1024, "seconds": seconds, "looks": len(seen)}))
