import os

import pytest
import torch

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


def test_one_worker_for_each_core_or_gpu(monkeypatch) -> None:
    assert assign_devices("cpu", None, 1) == ["cpu"] * len(os.sched_getaffinity(0))
    assert assign_devices("cpu", None, 1 << 50) == ["cpu"]
    assert assign_devices("cpu", 3, 1 << 50) == ["cpu"] * 3
    assert assign_devices("cpu", 0, 1) == []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert assign_devices("cuda", None, 1 << 50) == ["cuda:0", "cuda:1"]
    assert assign_devices("cuda", 3, 1) == ["cuda:0", "cuda:1", "cuda:0"]


def test_a_gpu_is_made_current_and_the_cpu_is_not(monkeypatch) -> None:
    current = []
    # torch's own check of what it is given, which refuses a device without an index.
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: current.append(torch.cuda._utils._get_device_index(device)))
    for name in ("cpu", "cuda:1", "cuda"):  # the last is Ray's, whose workers see their own GPU alone
        set_current_device(name)
    assert current == [1, 0]
