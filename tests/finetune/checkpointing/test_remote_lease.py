"""The lock of a remote folder: a live owner is named, a dead one is waited for, and an owner that lost the lock is notified."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from overtone.finetune.addresses import RemoteAddress
from overtone.finetune.checkpointing import remote_lease
from overtone.finetune.checkpointing.remote_lease import OBJECT, Lease
from overtone.finetune.errors import UserError
from overtone.finetune.storage import remote


@pytest.fixture(autouse=True)
def in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in {"BEAT_SECONDS": 0.05, "SILENCE_SECONDS": 0.5, "LOOK_SECONDS": 0.1}.items():
        monkeypatch.setattr(remote_lease, name, seconds)


@pytest.fixture
def place(tmp_path: Path) -> RemoteAddress:
    return RemoteAddress(f"file://{tmp_path}/elsewhere")


def test_the_error_names_a_live_owner(place: str) -> None:
    with Lease(place, "/runs/first"), pytest.raises(UserError, match=r"is in use by a running process \(/runs/first, process \d+ on"):
        Lease(place, "/runs/second").__enter__()
    assert remote.list_files(place) == {}
    with Lease(place, "/runs/second") as second:
        second.require()


def test_the_lock_of_a_dead_owner_is_taken_after_a_wait(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    remote.write(f"{place}/{OBJECT}", json.dumps({"run": "/runs/dead", "token": "x"}).encode())
    with Lease(place, "/runs/next") as held:
        held.require()
        assert "/runs/next" in remote.read(f"{place}/{OBJECT}").decode()
    assert "/runs/dead" in capsys.readouterr().err


def test_an_unknown_object_does_not_block_the_lock(place: str) -> None:
    remote.write(f"{place}/{OBJECT}", b"[not ours]")
    with Lease(place, "/runs/next") as held:
        held.require()


def test_an_owner_that_lost_the_lock_is_notified_and_leaves_the_new_object(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_lease, "BEAT_SECONDS", 1.0)  # not between the renewer's look and its writing, where it would be overwritten
    with Lease(place, "/runs/first") as first:
        remote.write(f"{place}/{OBJECT}", json.dumps({"run": "/runs/second", "token": "y"}).encode())
        with pytest.raises(UserError, match="/runs/second, .* acquired the lock of"):
            first.require()
        threading.Event().wait(1.5)
    assert "/runs/second" in remote.read(f"{place}/{OBJECT}").decode()


def test_the_new_owner_checks_the_lock_again_before_it_starts(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one may have waited for the same silence, and written its name after this one."""
    other = json.dumps({"run": "/runs/other", "token": "y"}).encode()
    written, write = [], remote.write

    def write_and_be_overwritten(url: str, content: bytes) -> None:
        write(url, content)
        written.append(json.loads(content)["run"])
        write(url, other)

    write(f"{place}/{OBJECT}", json.dumps({"run": "/runs/dead", "token": "x"}).encode())
    monkeypatch.setattr(remote, "write", write_and_be_overwritten)
    late = Lease(place, "/runs/late")
    with pytest.raises(UserError, match="/runs/other, .* acquired the lock of"):
        late.__enter__()
    assert written == ["/runs/late"] and remote.read(f"{place}/{OBJECT}") == other, "it has written once, and leaves the other's name"
    assert not late._thread.is_alive(), "and renews nothing"


def test_of_two_processes_that_take_the_lock_at_once_one_is_refused(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_lease, "LOOK_SECONDS", 1.0)  # a busy machine may keep one of the two waiting for a while
    remote.write(f"{place}/{OBJECT}", json.dumps({"run": "/runs/dead", "token": "x"}).encode())
    held, refused, ready = [], [], threading.Barrier(2)

    def take(name: str) -> None:
        ready.wait()
        try:
            with Lease(place, name) as one:
                ready.wait()
                one.require()
                held.append(name)
        except UserError as error:
            ready.abort()
            refused.append(str(error))
        except threading.BrokenBarrierError:
            held.append(name)

    threads = [threading.Thread(target=take, args=(f"/runs/{number}",)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(held) == 1 and len(refused) == 1 and held[0] in refused[0]
