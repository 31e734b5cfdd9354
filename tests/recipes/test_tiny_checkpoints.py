"""What the builders of tiny checkpoints share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from overtone.finetune.errors import UserError
from overtone.recipes import tiny_checkpoints


def test_weights_depend_on_names_and_the_seed_alone() -> None:
    shapes = {
        "b.weight": torch.Size([40, 30]),
        "a.weight": torch.Size([30, 30]),
        "a.bias": torch.Size([30]),
        "norm.weight": torch.Size([30]),
    }
    made = [tiny_checkpoints.make_random_weights(names, 0.1, seed) for names, seed in ((shapes, 1), (dict(reversed(shapes.items())), 1))]
    assert made[0] == made[1] != tiny_checkpoints.make_random_weights(shapes, 0.1, 2)
    tensors = load(made[0])
    assert tensors["norm.weight"].eq(1).all() and tensors["a.bias"].eq(0).all()
    assert tensors["b.weight"].std().item() == pytest.approx(0.1, rel=0.1)


def test_tensors_that_share_memory_are_stored_twice() -> None:
    whole = torch.arange(6.0).view(2, 3)
    stored = load(tiny_checkpoints.to_safetensors({"whole": whole, "turned": whole.t()}))
    assert torch.equal(stored["turned"], whole.t()) and torch.equal(stored["whole"], whole)


def test_a_tokenizer_splits_as_it_is_given_and_ends_with_the_special_tokens() -> None:
    tokenizer = tiny_checkpoints.train_byte_tokenizer(r"\p{N}|\p{L}+|[^\p{L}\p{N}]+", ["12 boats, 12 boats"] * 5, 300, ("<end>",))
    assert tokenizer.encode("boats12").tokens == ["boats", "1", "2"]
    assert tokenizer.get_vocab_size() == tokenizer.token_to_id("<end>") + 1 <= 301
    assert tokenizer.decode(tokenizer.encode("né, 2").ids) == "né, 2"


def test_a_checkpoint_is_a_new_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tiny_checkpoints.write_checkpoint(tmp_path / "new", {"config.json": b"{}", "part/config.json": b"[]"})
    assert (folder / "part" / "config.json").read_bytes() == b"[]"
    with pytest.raises(UserError, match="new exists already; remove it, or choose another folder"):
        tiny_checkpoints.require_new_folder(folder)
    given = tiny_checkpoints.make_parser("recipes.x.tiny_checkpoint", "Build x.").parse_args([str(tmp_path / "b"), "--seed", "3"])
    assert (given.folder, given.seed) == (tmp_path / "b", 3)
    assert tiny_checkpoints.report_checkpoint(folder) == 0
    assert "new: a model with random weights; train it before use" in capsys.readouterr().out
