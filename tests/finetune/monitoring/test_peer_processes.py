"""The end of a process on this machine is detected at once, with its signal until its parent has waited for it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest

from overtone.finetune.monitoring import peer_processes, rank_status_records
from overtone.finetune.monitoring.peer_processes import Identity, Peers, ProcessExit


@pytest.fixture
def sleeping() -> Iterator[list[subprocess.Popen[bytes]]]:
    made = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    yield made
    for process in made:
        process.kill()
        process.wait()


def beside(process: int) -> Identity:
    *place, _ = peer_processes.identify_process()
    return (place[0], place[1], place[2], process)


def test_deaths_are_seen_in_their_order_with_their_signal(sleeping: list[subprocess.Popen[bytes]]) -> None:
    first, second = sleeping
    watch = Peers(1, [beside(first.pid), peer_processes.identify_process(), beside(second.pid)])
    assert watch.all_near and not watch.wait(0) and watch.deaths == []
    second.kill()
    assert watch.wait(60) and watch.deaths == [ProcessExit(2, second.pid, "SIGKILL", None)]
    first.send_signal(signal.SIGSEGV)
    while len(watch.deaths) < 2:
        watch.wait(60)
    assert watch.deaths[1] == ProcessExit(0, first.pid, "SIGSEGV", None)
    watch.close()


def test_the_exit_code_of_a_process_is_reported() -> None:
    ended = subprocess.Popen(["sh", "-c", "read line; exit 3"], stdin=subprocess.PIPE)
    watch = Peers(0, [peer_processes.identify_process(), beside(ended.pid)])
    ended.stdin.close()  # type: ignore[union-attr]
    assert watch.wait(60) and watch.deaths == [ProcessExit(1, ended.pid, None, 3)]
    ended.wait()


def test_a_process_that_was_already_waited_for_has_no_exit_code() -> None:
    collected = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    watch = Peers(0, [peer_processes.identify_process(), beside(collected.pid)])
    collected.communicate()
    assert watch.wait(60) and watch.deaths == [ProcessExit(1, collected.pid, None, None)]


def test_an_invisible_process_is_not_considered_dead() -> None:
    """It answered a moment ago: two machines that look the same would otherwise end a healthy run."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    watch = Peers(0, [peer_processes.identify_process(), beside(gone.pid)])
    assert not watch.all_near and not watch.wait(0) and watch.deaths == []


def test_a_python_without_pidfds_leaves_all_to_the_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    watch = Peers(0, [peer_processes.identify_process(), beside(os.getppid())])
    assert not watch.all_near and not watch.wait(0)


def test_ranks_of_other_machines_and_containers_are_not_watched() -> None:
    host, boot, namespace, process = peer_processes.identify_process()
    for other in (("another", boot, namespace), (host, "another", namespace), (host, boot, "pid:[1]")):
        watch = Peers(0, [peer_processes.identify_process(), (*other, process)])
        assert not watch.all_near and watch._watched == {} and not watch.wait(0)


def test_two_machines_with_one_name_are_distinguished(monkeypatch: pytest.MonkeyPatch) -> None:
    here = peer_processes.identify_process()
    monkeypatch.setattr(rank_status_records, "boot_id", lambda: "another start")
    assert peer_processes.identify_process() == (here[0], "another start", *here[2:])
