"""overtone.json: what it records, and that it needs no torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from overtone.finetune.exporting.export_provenance import encode_card, locate_base
from tests.finetune import tiny


def test_the_card_names_recipe_checkpoint_base_data_and_weights() -> None:
    state, origin = tiny.state(4), {"recipe": "voice_clone", "format": "base", "step": 4, "checkpoint": "run/checkpoints/step-00000004"}
    card = json.loads(encode_card(state, origin, {"model.safetensors": "abc"}, Path("exports/me")))
    assert card.pop("overtone")
    assert card == {**origin, **{key: state[key] for key in ("base", "data", "lora")}, "weights": {"model.safetensors": "abc"}}


def test_the_folder_of_a_base_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to the export: the card shows no absolute path, and both can be moved together."""
    base, exported = tmp_path / "bases" / "one", tmp_path / "exports" / "me"
    base.mkdir(parents=True)
    exported.mkdir(parents=True)
    state = {**tiny.state(4), "base": {**tiny.state(4)["base"], "source": str(base)}}
    monkeypatch.chdir(tmp_path)
    named = json.loads(encode_card(state, {}, {}, Path("exports/me")))["base"]["source"]
    assert named == "../../bases/one"
    monkeypatch.chdir("/")
    assert locate_base(exported, named) == str(base)
    assert locate_base(exported, "owner/model") == "owner/model"


def test_verbs_that_read_a_card_need_no_torch() -> None:
    script = (
        "import sys, overtone.finetune.cli.chat, overtone.finetune.cli.eval_voice, "
        "overtone.finetune.cli.serve, overtone.finetune.cli.export; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr
