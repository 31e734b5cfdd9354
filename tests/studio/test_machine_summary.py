"""One line says what this machine can train."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.studio import machine_summary
from overtone.studio.machine_summary import describe_gpus, describe_machine


@pytest.mark.parametrize(
    ("output", "line"),
    [
        ("", "no GPU: "),
        ("NVIDIA H200, 144384", "1 GPU: NVIDIA H200, 141 GiB"),
        ("NVIDIA A, 24576\nNVIDIA B, 16384", "2 GPUs: NVIDIA B, 16 GiB"),
        ("NVIDIA A, [N/A]", "no GPU: "),
    ],
)
def test_gpus(output: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_summary, "run_tool", lambda *_: output)
    assert describe_gpus().startswith(line)


def test_memory_and_disk(tmp_path: Path) -> None:
    assert " GiB memory, " in describe_machine(tmp_path) and describe_machine(tmp_path).endswith(" GiB disk free")
