"""Process that runs one job: waits for its turn, starts the verb, passes on requests to stop, and records the end.

The studio starts it in a session of its own, so the job outlives the studio and its terminal.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_summary import find_state
from overtone.finetune.storage import folder_handles
from overtone.finetune.terminal import print_line, protect_terminal
from overtone.studio.jobs import job_records
from overtone.studio.jobs.job_commands import QUEUED, check_command, show_command
from overtone.studio.jobs.job_queue import list_ahead, signal_child
from overtone.studio.jobs.job_records import JobEnd, JobProcess, StopRequest, StudioJob

SCRIPT = Path(sys.executable).with_name("overtone")
PROGRAM = [str(SCRIPT)] if SCRIPT.is_file() else [sys.executable, "-m", "overtone"]
"""Words that start `overtone`: its script, so that messages name it as people type it, or the module without one."""
SECONDS = 0.2
"""Time between two looks at the queue, the job's process and requests to stop."""


def main(argv: list[str]) -> None:
    """Run a job. `argv`: folder of the studio, id of the job, descriptor of the job's lock, which stays open until this process ends."""
    place, id, held = Path(argv[0]), argv[1], int(argv[2])
    protect_terminal()
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    folder = place / job_records.JOBS / id
    signal.signal(signal.SIGTERM, lambda *_: job_records.write_record(folder / job_records.STOP, StopRequest(at_once=False)))
    try:
        code, stopped = run_job(place, _read(place, id), held)
    except (OSError, UserError) as error:
        print_line(f"error: {error}")
        code, stopped = 2, False
    job_records.write_record(folder / job_records.EXIT, JobEnd(code=code, stopped=stopped, ended=time.time()))


def run_job(place: Path, job: StudioJob, held: int) -> tuple[int, bool]:
    """Wait for the turn of a job and run it; returns (exit code, whether it was stopped)."""
    verb, words = job.command.verb, job.command.words
    check_command(place, verb, words)
    print_line(f"$ {show_command(verb, words)}")
    if verb not in QUEUED:
        return run_verb(place, job, [held])
    queue = folder_handles.open_file(place / job_records.QUEUE_LOCK, os.O_RDWR | os.O_CREAT)
    try:
        return run_verb(place, job, [held, queue]) if wait_for_turn(place, job.id, queue) else (0, True)
    finally:
        os.close(queue)


def run_verb(place: Path, job: StudioJob, locks: list[int]) -> tuple[int, bool]:
    """Run the verb of a job, which inherits the locks: if this process is killed, the job still counts as running, and the next one still
    waits. Returns as `run_job`."""
    verb, words = job.command.verb, job.command.words
    with subprocess.Popen([*PROGRAM, verb, *words], cwd=place, stdin=subprocess.DEVNULL, pass_fds=locks, start_new_session=True) as child:
        identity = job_records.identify_process(child.pid)
        record = JobProcess(runner=job_records.identify_process(os.getpid()), child=identity, started=time.time())
        job_records.write_record(job.folder / job_records.PROCESS, record)
        passed_on = list[bool]()
        while child.poll() is None:
            stop = _read(place, job.id).stop
            if stop is not None and stop.at_once not in passed_on:
                passed_on.append(stop.at_once)
                signal_child(identity, stop.at_once)
            time.sleep(SECONDS)
    # Training may have been stopped in another way, or have finished at the signal: its run says so.
    run = find_run_folder(words) if verb == "train" else None
    state, _ = find_state(place / run) if run is not None else ("", "")
    return child.returncode, state == "stopped" if state in ("stopped", "finished") else bool(passed_on)


def _read(place: Path, id: str) -> StudioJob:
    job = job_records.read_job(place, id)
    if job is None:
        raise UserError(f"the record of job {id} is gone; start the job again")
    return job


def wait_for_turn(place: Path, id: str, queue: int) -> bool:
    """Wait until no earlier job is in the queue and its lock is free, and take it; returns False if the job was stopped before."""
    passed = set[str]()
    while _read(place, id).stop is None:
        if not list_ahead(place, id, passed):
            try:
                fcntl.flock(queue, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                pass
            else:
                return True
        time.sleep(SECONDS)
    return False


def find_run_folder(words: Sequence[str]) -> str | None:
    """Return the folder of the run that `overtone train` writes with these words; None if they do not name it."""
    given = None
    for index, word in enumerate(words):
        flag, equal, value = word.partition("=")
        if flag == "--run.dir":
            given = value if equal else words[index + 1] if index + 1 < len(words) else None
    return given


if __name__ == "__main__":
    main(sys.argv[1:])
