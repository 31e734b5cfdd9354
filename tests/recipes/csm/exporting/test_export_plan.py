"""The exported folder: loads in the stock classes, contains the base's codec and nothing untrained, and can be trained further."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from overtone.finetune.errors import UserError
from overtone.recipes.csm.exporting.export_plan import plan_export
from overtone.recipes.csm.model.modeling import COPY
from overtone.recipes.csm.recipe import RECIPE
from tests.recipes.csm.tiny_csm import ReadyCsm, call_stock, export, load_stock, make_ready, make_rows, means

TABLE = "depth_decoder.model.embed_tokens.weight"


@pytest.fixture(scope="module")
def released_like(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As the released folder: the shared table under both names, a second file in the names of the maker's own code, a pickle, a note."""
    base = tmp_path_factory.mktemp("released") / "base"
    base.mkdir()
    for path in tiny.iterdir():
        (base / path.name).write_bytes(path.read_bytes())
    tensors = load_file(base / "model.safetensors")
    save_file({**tensors, COPY: tensors[TABLE].clone()}, base / "model.safetensors", metadata={"format": "pt"})
    save_file({"codebook0_head.weight": torch.zeros(35, 32)}, base / "original.safetensors")
    (base / "private.json").write_text("{}")
    return base


def test_a_released_like_base_is_exported_without_untrained_copies(released_like: Path, tmp_path: Path) -> None:
    ready = make_ready(tmp_path / "data", released_like, make_rows(["Ann"]))
    with torch.no_grad():
        for parameter in ready.model.parameters():
            parameter.add_(0.01)
    folder = export(ready, tmp_path / "export")
    assert sorted(path.name for path in folder.iterdir()) == [
        *("README.md", "chat_template.jinja", "config.json", "generation_config.json", "model.safetensors", "preprocessor_config.json"),
        *("tokenizer.json", "tokenizer_config.json", "voices.json"),
    ]
    written, base = load_file(folder / "model.safetensors"), load_file(released_like / "model.safetensors")
    assert COPY not in written and "codebook0_head.weight" not in written
    codec = {name for name in base if name.startswith("codec_model.")}
    assert len(codec) > 50 and all(torch.equal(written[name], base[name]) for name in codec)
    assert all(torch.equal(written[name], value) for name, value in ready.model.state_dict().items())
    ready.model.eval()
    stock = load_stock(folder)
    ours = means(ready.model, RECIPE.collate(ready.samples[:1]))
    assert ours["backbone"] + ours["depth"] == pytest.approx(call_stock(stock, ready.samples[0]).loss.item(), abs=2e-6)
    assert stock.backbone_model.embed_tokens.embed_audio_tokens.weight is stock.depth_decoder.model.embed_tokens.weight


def test_an_export_is_a_base_whose_speakers_keep_their_numbers(fresh: ReadyCsm, tmp_path: Path) -> None:
    folder = export(fresh, tmp_path / "export")
    again = make_ready(tmp_path / "more", folder, make_rows(["Aaron", "Bob"]))
    speakers = [(one.name, one.id, one.clips > 0) for one in again.loaded.state.speakers]
    assert speakers == [("aaron", 2, True), ("bob", 1, True), ("ann", 0, False)], "the model still knows ann"


def test_the_stock_processor_loads_and_makes_the_training_prompt(fresh: ReadyCsm, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = export(fresh, tmp_path / "export")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    turn = [{"role": "1", "content": [{"type": "text", "text": "It is never late, is it?"}]}]
    prompt = tokenizer.apply_chat_template(turn, tokenize=False)
    ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    assert ids == fresh.samples[3]["ids"][: len(ids)].tolist()


def test_the_config_leads_to_no_other_weights(released_like: Path, fresh: ReadyCsm, tmp_path: Path) -> None:
    config = json.loads((released_like / "config.json").read_text())
    base = tmp_path / "base"
    base.mkdir()
    for path in released_like.iterdir():
        (base / path.name).write_bytes(path.read_bytes())
    (base / "config.json").write_text(json.dumps({**config, "transformers_weights": "transformers.safetensors.index.json"}))
    assert "transformers_weights" not in json.loads(plan_export(base, fresh.loaded.state).files["config.json"])


def test_a_base_without_its_processor_is_refused(tiny: Path, fresh: ReadyCsm, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((tiny / "config.json").read_bytes())
    with pytest.raises(UserError, match=r"lacks preprocessor_config.json, tokenizer.json, tokenizer_config.json"):
        plan_export(tmp_path, fresh.loaded.state)
