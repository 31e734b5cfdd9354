"""A resumed run has the losses of an unbroken one, to the last bit, with each rotary type: none remembers the samples before the break."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tests.recipes.language.modeling.test_rotary_tables import PARAMETERS
from tests.recipes.llm_sft import tiny_runs

ORIGINAL = 24
"""Between the lengths of the short chats and of the long ones."""
ONE_BY_ONE = (
    ("train.steps", "6"),
    ("train.lr", "1e-2"),
    ("checkpoint.every", "3"),
    ("checkpoint.keep", "6"),
    ("train.global_batch_tokens", "1"),
    ("data.packing", "false"),
)
"""Each step has one micro-batch, of one or two chats."""


def write_base(folder: Path, kind: str) -> None:
    path = tiny_runs.write_base(folder) / "config.json"
    own = {"original_max_position_embeddings": ORIGINAL, "factor": 4.0} if kind == "longrope" else {}
    changes = {**PARAMETERS[kind], **own}
    if "original_max_position_embeddings" in changes:
        changes["original_max_position_embeddings"] = ORIGINAL
    config = {**json.loads(path.read_text("utf-8")), "max_position_embeddings": ORIGINAL if kind == "dynamic" else tiny_runs.POSITIONS}
    for name in ("rope_scaling", "rope_parameters"):
        config.pop(name, None)
    scaling = {"rope_theta": 1e4, "rope_scaling": {"rope_type": kind, **changes}, **own} if kind != "default" else {}
    path.write_text(json.dumps({**config, **scaling}), encoding="utf-8")


def make_rows() -> list[dict[str, Any]]:
    """Chats shorter and longer than `ORIGINAL`, so that each step has another longest one."""
    answers = ["Yes.", "It is cold. " * 4, "No.", "It is warm. " * 3, "It is.", "The weather is cold. " * 3]
    return [{"messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": answer.strip()}]} for answer in answers]


def losses(run: Path) -> dict[int, float]:
    events = [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").split("\n") if line]
    return {event["step"]: event["loss"] for event in events if event["event"] == "step"}


@pytest.mark.parametrize("kind", sorted({"default", *ROPE_INIT_FUNCTIONS}))
def test_a_resumed_run_has_the_losses_of_an_unbroken_one(tmp_path: Path, kind: str) -> None:
    write_base(tmp_path / "base", kind)
    run = tiny_runs.trained(tmp_path, *ONE_BY_ONE, data=make_rows())
    whole = losses(run)
    assert sorted(whole) == [1, 2, 3, 4, 5, 6] and len(set(whole.values())) == 6
    broken = tmp_path / "broken"
    shutil.copytree(run / "checkpoints" / "step-00000003", broken / "checkpoints" / "step-00000003")
    resumed = tiny_runs.trained(tmp_path, *ONE_BY_ONE, ("run.dir", str(broken)), data=make_rows())
    assert losses(resumed) == {step: whole[step] for step in (4, 5, 6)}
