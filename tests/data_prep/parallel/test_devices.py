import os

import pytest
import torch

from overtone.data_prep.parallel import devices
from overtone.data_prep.parallel.devices import assign_devices, choose_device, set_current_device
from overtone.finetune.errors import UserError


def test_the_device_is_the_requested_or_the_available_one(monkeypatch) -> None:
    cases = [(False, None, "cpu"), (False, "cpu", "cpu"), (True, None, "cuda"), (True, "cpu", "cpu"), (True, "cuda", "cuda")]
    for there, asked, chosen in cases:
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert choose_device(asked) == chosen


def test_a_missing_gpu_is_refused_with_the_alternative(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match="--device cpu"):
        choose_device("cuda")


def test_a_cpu_gets_one_worker_for_each_core_as_far_as_its_memory_allows() -> None:
    assert assign_devices("cpu", None, 1) == ["cpu"] * len(os.sched_getaffinity(0))
    assert assign_devices("cpu", None, 1 << 50) == ["cpu"]
    assert assign_devices("cpu", 3, 1 << 50) == ["cpu"] * 3
    assert assign_devices("cpu", 0, 1) == []


def equip(monkeypatch, cores: int, host_gib: int, free_gib: list[int]) -> None:
    """A machine with `cores`, `host_gib` GiB of free memory, and GPUs with `free_gib` GiB each."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    monkeypatch.setattr(devices, "free_host_memory", lambda: host_gib << 30)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free_gib))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda gpu: (free_gib[gpu] << 30, 141 << 30))


@pytest.mark.parametrize(
    ("machine", "gib_each", "expected"),
    [
        ((16, 128, [139]), 10, [12]),  # the host's memory decides
        ((16, 1024, [139]), 5, [16]),  # the cores
        ((64, 1024, [79]), 10, [7]),  # the GPU's memory
        ((64, 1024, [79, 24]), 10, [7, 2]),  # each GPU by its own, as where another program uses one
        ((20, 1024, [79] * 8), 10, [2] * 8),  # cores in equal shares
        ((4, 1024, [79] * 8), 10, [1] * 8),  # more GPUs than cores
        ((4, 8, [8]), 10, [1]),  # not enough by the estimate, which is cautious
    ],
)
def test_the_workers_of_a_gpu_follow_from_cores_and_memory(monkeypatch, machine, gib_each, expected) -> None:
    equip(monkeypatch, *machine)
    chosen = assign_devices("cuda", None, gib_each << 30)
    assert [chosen.count(f"cuda:{gpu}") for gpu in range(len(expected))] == expected
    assert len(chosen) == sum(expected)
    assert chosen[: len(expected)] == [f"cuda:{gpu}" for gpu in range(len(expected))]  # few items reach all GPUs


def test_a_requested_number_of_workers_is_spread_over_the_gpus(monkeypatch) -> None:
    equip(monkeypatch, 1, 1, [1, 1])
    assert assign_devices("cuda", 3, 1 << 50) == ["cuda:0", "cuda:1", "cuda:0"]


def test_a_gpu_is_made_current_and_the_cpu_is_not(monkeypatch) -> None:
    current = []
    # torch's own check of what it is given, which refuses a device without an index.
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: current.append(torch.cuda._utils._get_device_index(device)))
    for name in ("cpu", "cuda:1", "cuda"):  # the last is Ray's, whose workers see their own GPU alone
        set_current_device(name)
    assert current == [1, 0]
