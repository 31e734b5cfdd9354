from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from overtone.finetune.distributed.process_group import join, leave
from overtone.finetune.hardware import cudnn_sdpa


@pytest.fixture(autouse=True)
def cudnn_enabled() -> Iterator[None]:
    """As a process starts."""
    torch.backends.cuda.enable_cudnn_sdp(True)
    yield
    torch.backends.cuda.enable_cudnn_sdp(False)


def test_cudnn_is_disabled_and_nothing_else() -> None:
    others = (torch.backends.cuda.flash_sdp_enabled, torch.backends.cuda.mem_efficient_sdp_enabled, torch.backends.cuda.math_sdp_enabled)
    before = [enabled() for enabled in others]
    assert torch.backends.cuda.cudnn_sdp_enabled()
    cudnn_sdpa.disable_cudnn()
    assert not torch.backends.cuda.cudnn_sdp_enabled() and [enabled() for enabled in others] == before == [True] * 3


def test_cudnn_is_disabled_once_ranks_have_joined(tmp_path: Path) -> None:
    join((), tmp_path)
    leave()
    assert not torch.backends.cuda.cudnn_sdp_enabled()
