"""A save's copy in host memory: complete, in reused memory, and unaffected by later updates."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from overtone.finetune.checkpointing import checkpoint, staging_buffers
from overtone.finetune.checkpointing.checkpoint import Saver
from overtone.finetune.checkpointing.staging_buffers import Claim, SideStream, Staging, count_bytes, find_shortages
from overtone.finetune.data import batching
from overtone.finetune.distributed.process_group import World
from overtone.finetune.training import loop
from overtone.finetune.training.step import Training, make_loader, train_step
from tests.finetune import tiny
from tests.finetune.checkpointing.test_checkpoint import tensors_of
from tests.finetune.checkpointing.test_rank_shards import TENSORS, whole

ALL = whole({**TENSORS, "transposed": torch.randn(3, 4, requires_grad=True).T, "empty": torch.empty(0, 3)})


# --- the buffer


def test_a_copy_holds_the_values_of_its_moment() -> None:
    own = {name: part.value.detach().clone() for name, part in ALL.items()}
    staged, wait = Staging(count_bytes(ALL), None).copy(whole(own))
    wait()
    for tensor in own.values():
        tensor.zero_()
    assert staged.keys() == ALL.keys()
    for name, part in ALL.items():
        assert torch.equal(staged[name].value, part.value) and staged[name].value.dtype == part.value.dtype, name
        assert staged[name].value.is_contiguous() and staged[name].offset == part.offset and not staged[name].value.requires_grad


def test_every_copy_reuses_the_same_memory() -> None:
    buffer = Staging(4096, None)
    places = []
    for factor in (1.0, 2.0):
        parts = whole({"a": torch.ones(1000) * factor, "b": torch.ones(3).bfloat16() * factor})
        staged, _ = buffer.copy(parts)
        assert all(torch.equal(staged[name].value, part.value) for name, part in parts.items())
        places.append([part.value.data_ptr() for part in staged.values()])
    assert places[0] == places[1]
    with pytest.raises(ValueError, match="4160 bytes for a staging buffer of 4096"):
        buffer.copy(whole({"a": torch.ones(1000), "b": torch.ones(3), "c": torch.ones(1)}))


def test_released_memory_is_freed() -> None:
    buffer = Staging(count_bytes(ALL), None)
    buffer.release()
    assert buffer.bytes == 0
    with pytest.raises(ValueError, match="for a staging buffer of 0"):
        buffer.copy(ALL)


# --- room for it


GB = 10**9


@pytest.mark.parametrize(
    ("claims", "lines"),
    [
        ([Claim("a", 8 * GB, 10 * GB)], []),
        ([Claim("a", 8 * GB + 1, 10 * GB)], ["a: 8.00 GB for 1 ranks, and 10.00 GB are free"]),
        ([Claim("a", 4 * GB, 10 * GB), Claim("a", 4 * GB, 11 * GB)], []),
        ([Claim("a", 5 * GB, 11 * GB), Claim("a", 4 * GB, 10 * GB)], ["a: 9.00 GB for 2 ranks, and 10.00 GB are free"]),
        ([Claim("a", 5 * GB, 10 * GB), Claim("b", 5 * GB, 10 * GB)], []),
        ([Claim("a", 5 * GB, 10 * GB), Claim("b", 5 * GB, 6 * GB)], ["b: 5.00 GB for 1 ranks, and 6.00 GB are free"]),
    ],
)
def test_the_buffers_of_a_machine_take_most_of_what_is_free_but_not_all(claims: list[Claim], lines: list[str]) -> None:
    assert find_shortages(claims) == lines


def test_a_buffer_is_reported_with_its_size(world: World) -> None:
    buffer, account = staging_buffers.allocate_staging(world, whole({"a": torch.ones(25 * 10**5)}))
    assert buffer is not None and buffer.bytes == 10**7
    assert account == "asynchronous saves use 0.01 GB of host memory per rank until the run ends"


def full(*_: Any) -> Any:
    raise OSError(12, "Cannot allocate memory")


@pytest.mark.parametrize(
    ("owner", "name", "instead", "reason"),
    [
        (staging_buffers, "free_host_memory", lambda: 1000, "0.00 GB for 1 ranks, and 0.00 GB are free"),
        (staging_buffers, "Staging", full, "the memory cannot be allocated"),
    ],
)
def test_without_room_a_save_is_written_while_the_loop_waits(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, instead: Callable[..., Any], reason: str
) -> None:
    training, progress = tiny.trained(world, tiny.config_in(tmp_path, ("train.steps", "2")))
    expected = tensors_of(training)
    accounts: list[str] = []
    saver = Saver(world, tmp_path / "other", keep=2, asynchronous=True, say=accounts.append)
    monkeypatch.setattr(owner, name, instead)
    for step in (2, 3):
        loop.save(training, replace(progress, step=step), saver)
        assert saver._pending is not None and saver._pending.written.done(), "nothing is left to be written beside the training"
        folder = saver.finish()
        assert folder is not None and checkpoint.find_problem(folder) is None
    saver.close()
    with checkpoint.rank_shards.open_shards(folder) as (read, _shapes):
        assert all(torch.equal(read(name, None), value) for name, value in expected.items())
    (account,) = accounts
    assert account.startswith("warning: not enough host memory for asynchronous saves, so each save blocks training until it is written: ")
    assert reason in account


# --- saves one after the other


def test_a_save_waits_until_the_previous_one_is_written(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if nobody has waited for that one, as after an interrupt: its bytes are in the buffer that the new one wants."""
    training, progress = tiny.trained(world, tiny.config_in(tmp_path, ("train.steps", "1")))
    order: list[str] = []
    awaited = threading.Event()
    write, copy, wait = checkpoint.rank_shards.write_shard, Staging.copy, checkpoint.wait

    def slowly(*arguments: Any) -> Any:
        assert awaited.wait(100)
        order.append("written")
        return write(*arguments)

    def noted(*arguments: Any, **named: Any) -> Any:
        order.append("copied")
        return copy(*arguments, **named)

    def waiting(futures: Any) -> Any:
        awaited.set()
        return wait(futures)

    monkeypatch.setattr(checkpoint.rank_shards, "write_shard", slowly)
    monkeypatch.setattr(Staging, "copy", noted)
    monkeypatch.setattr(checkpoint, "wait", waiting)
    saver = Saver(world, tmp_path / "other", keep=2, asynchronous=True)
    loop.save(training, progress, saver)
    saver._pending = None
    loop.save(training, replace(progress, step=2), saver)
    saver.finish()
    saver.close()
    assert order == ["copied", "written", "copied", "written"]


class LastMoment:
    """In place of a side stream: copies at the last moment that a GPU's stream may, when the fence is reached."""

    def __init__(self, _: torch.device) -> None:
        self._pairs: list[tuple[Tensor, Tensor]] = []
        self._copied = threading.Event()

    def copy(self, pairs: Sequence[tuple[Tensor, Tensor]]) -> Callable[[], None]:
        self._pairs = [*pairs]
        self._copied.clear()
        return self._wait

    def fence(self) -> None:
        for target, source in self._pairs:
            target.copy_(source)
        self._pairs = []
        self._copied.set()

    def _wait(self) -> None:
        assert self._copied.wait(100), "no fence"


def test_the_next_update_waits_for_the_copy(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    training, progress = tiny.trained(world, tiny.config_in(tmp_path, ("train.steps", "2")))
    expected = tensors_of(training)
    monkeypatch.setattr(staging_buffers, "on_gpu", lambda _: True)
    monkeypatch.setattr(staging_buffers, "page_lock", lambda _: False)
    monkeypatch.setattr(staging_buffers, "SideStream", LastMoment)
    saver = Saver(world, tmp_path / "other", keep=2, asynchronous=True)
    loop.save(training, progress, saver)
    training.model.get_buffer("scale").fill_(2.0)  # as a forward pass may; the side stream copies what updates alone change
    step = next(
        batching.steps(
            training.order,
            training.rows.lengths,
            batching.Place(),
            None,
        )
    )
    with closing(make_loader(training, training.rows)) as loader:
        train_step(training, loader.turns(step.micros), progress.step, (), saver.before_update)
    assert not torch.equal(tensors_of(training)["head.bias"], expected["head.bias"])
    folder = saver.finish()
    saver.close()
    assert folder is not None
    with checkpoint.rank_shards.open_shards(folder) as (read, _):
        assert all(torch.equal(read(name, None), value) for name, value in expected.items())


def test_the_loop_fences_each_update(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    training, progress = tiny.built(world, tiny.config_in(tmp_path, ("train.steps", "3"), ("checkpoint.every", "1")))
    seen: list[float] = []

    def noted(_: Saver) -> None:
        seen.append(updates(training))

    monkeypatch.setattr(Saver, "before_update", noted)
    saver = Saver(world, tmp_path / "run", keep=2, asynchronous=True)
    events = loop.Events(tmp_path / "run", world.accelerator, training.total, 0, {})
    loop.fit(training, progress, events, saver, loop.StopRequests())
    saver.close()
    events.close()
    assert seen == [0, 1, 2]


def updates(training: Training) -> float:
    """How many the optimizer has made."""
    return max((float(state["step"]) for state in training.optimizer.state.values()), default=0)


# --- calls of CUDA


class Library:
    """In place of CUDA's runtime: notes what is registered, and answers with `code`."""

    def __init__(self, code: int) -> None:
        self.code, self.calls = code, list[tuple[Any, ...]]()

    def cudaHostRegister(self, *arguments: int) -> int:  # noqa: N802 - CUDA's name
        self.calls.append(("register", *arguments))
        return self.code

    def cudaHostUnregister(self, *arguments: int) -> int:  # noqa: N802
        self.calls.append(("unregister", *arguments))
        return 0


@pytest.mark.parametrize("code", [0, 1])
def test_the_buffer_is_page_locked_once_and_unlocked_at_the_end(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(code)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: library)
    raised = []

    def ones(*_: int, device: str) -> None:
        """The first kernel after a refused call, whose check finds the error of that call."""
        raised.append(device)
        raise RuntimeError("CUDA error: operation not permitted")

    monkeypatch.setattr(torch, "ones", ones)
    buffer = Staging(4096, LastMoment(torch.device("cpu")))  # type: ignore[arg-type]
    place = buffer._memory.data_ptr()
    assert buffer.is_page_locked == (code == 0) and place % 4096 == 0
    assert raised == [[], ["cuda"]][code], "the error of a refused call does not reach the training"
    buffer.release()
    assert library.calls == [("register", place, 4096, 1), ("unregister", place)][: 2 - code]
    buffer.release()
    assert len(library.calls) == 2 - code


class Stream:
    """In place of `torch.cuda.Stream` and `Event`: notes what is enqueued, in order."""

    log: ClassVar[list[str]] = []

    def __init__(self, *_: Any, **named: Any) -> None:
        self.name = "event, blocking" if named == {"blocking": True} else "side"

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event: Stream) -> None:
        self.log.append(f"{self.name} waits for {event.name}")

    def record(self, stream: Stream) -> None:
        self.log.append(f"{self.name}, after {stream.name}")

    def synchronize(self) -> None:
        self.log.append(f"host waits for {self.name}")


def test_copies_follow_enqueued_work_and_precede_the_next_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stream, "log", [])
    current = Stream()
    current.name = "main"
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: current)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext(Stream.log.append(f"in {stream.name}")))
    side = SideStream(torch.device("cuda", 0))
    side.fence()
    target, source = torch.zeros(3), torch.ones(3)
    wait = side.copy([(target, source)])
    side.fence()
    side.fence()
    wait()
    assert torch.equal(target, source)
    assert Stream.log == [
        "side waits for main",
        "in side",
        "event, blocking, after side",
        "main waits for event, blocking",
        "host waits for event, blocking",
    ]
