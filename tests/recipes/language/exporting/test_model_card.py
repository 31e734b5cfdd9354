"""Tests of `overtone.recipes.language.exporting.model_card`: what the model was made from, and no paths on the machine of the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard

from overtone.finetune.config import dump, resolve
from overtone.recipes.language.exporting.model_card import Objective, format_loss, make_header, render_card
from overtone.recipes.llm_sft.recipe import RECIPE

COMMIT = "0123456789" * 4
STATE: dict[str, Any] = {
    "step": 1200,
    "validation_loss": 0.5,
    "base": {"source": "Qwen/Qwen3-1.7B-Base", "revision": COMMIT, "digest": "ef" * 32},
    "data": {"rows": 1234, "positions": 56789, "digest": "ab" * 32, "sources": []},
    "lora": None,
    "added": [],
    "quantization": None,
    "recipe_state": {"supervise": "assistant", "chat_template": None},
}


SFT = Objective("sft", {"Supervised": "every turn of the assistant"})
LICENSED = {"license": "apache-2.0", "language": ["en"]}


def card(tmp_path: Path, inherited: dict[str, Any] = LICENSED, chats: bool = True, **changes: Any) -> str:
    given = (("data.train", str(tmp_path / "secret place" / "chats.jsonl")), ("train.lr", "2e-5"), ("run.dir", str(tmp_path / "run")))
    given += (("data.val", str(tmp_path / "secret place" / "held_out.jsonl")),)
    return render_card({**STATE, **changes}, dump(resolve("llm_sft", RECIPE.Options, [], given)), inherited, chats, "transformers", SFT)


def header(text: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(text.split("---")[1])
    return found


def test_the_card_has_base_data_metrics_and_settings(tmp_path: Path) -> None:
    text = card(tmp_path)
    for line in (
        f"| Base | Qwen/Qwen3-1.7B-Base@{COMMIT} |",
        "| Data | `chats.jsonl`, 1,234 rows, 56,789 tokens |",
        f"SHA-256 `{'ab' * 32}`",
        "| Supervised | every turn of the assistant |",
        "| Trained | all weights |",
        "| Steps | 1,200 |",
        "| Validation loss | 0.5000 nats per token, perplexity 1.649 |",
        "lr: 2.0e-05",
        "apply_chat_template",
    ):
        assert line in text, line
    assert str(tmp_path) not in text and "secret place" not in text
    found = ModelCard(text).data
    assert (found.license, found.language, found.base_model, found.library_name) == (
        *("apache-2.0", ["en"], "Qwen/Qwen3-1.7B-Base", "transformers"),
    )
    assert found.eval_results is not None and found.model_name == "Qwen3-1.7B-Base-sft"
    results = [(one.dataset_name, one.metric_type, one.metric_value) for one in found.eval_results]
    assert results == [("held_out.jsonl", "loss", 0.5), ("held_out.jsonl", "perplexity", 1.6487)]


def test_the_files_of_a_mixture_are_named_with_their_shares(tmp_path: Path) -> None:
    sources = [{"name": "me", "share": "9/10", "rows": 9}, {"name": "replay", "share": "1/10", "rows": 1}]
    text = card(tmp_path, data={**STATE["data"], "sources": sources})
    assert "`me` (0.9 of the samples), `replay` (0.1 of the samples), 1,234 rows, 56,789 tokens" in text and "chats.jsonl" not in text


def test_unknown_values_are_reported_as_unknown(tmp_path: Path) -> None:
    text = card(tmp_path, inherited={}, chats=False, validation_loss=None)
    assert "| Validation loss | not measured at this step |" in text and "it could not be read from the base's model card" in text
    assert not {"license", "model-index"} & header(text).keys() and "apply_chat_template" not in text


def test_a_base_in_a_folder_is_not_in_the_metadata_for_the_hub(tmp_path: Path) -> None:
    (tmp_path / "my-base").mkdir()
    text = card(tmp_path, base={"source": str(tmp_path / "my-base"), "revision": None, "digest": "0"})
    assert "base_model" not in header(text) and "| Base | my-base |" in text and str(tmp_path) not in text
    (tmp_path / "my-base").rmdir()  # moved after the training
    assert card(tmp_path, base={"source": str(tmp_path / "my-base"), "revision": None, "digest": "0"}) == text


@pytest.mark.parametrize(
    ("dora", "quantization", "kind"), [(False, None, "LoRA of rank 8"), (True, None, "DoRA of rank 8"), (False, "nf4", "4-bit base, LoRA")]
)
def test_adapters_are_described(tmp_path: Path, dora: bool, quantization: str | None, kind: str) -> None:
    assert f"| Trained | {kind}" in card(tmp_path, lora={"rank": 8, "alpha": 16.0, "dora": dora}, quantization=quantization)


def test_a_loss_that_is_not_in_nats_has_no_perplexity() -> None:
    margin = Objective("dpo", {}, in_nats=False)
    assert format_loss(0.5, margin) == "0.5000" and format_loss(0.5, SFT) == "0.5000 nats per token, perplexity 1.649"
    settings = {"data": {"val": "held_out.jsonl"}}
    for objective, metrics in ((margin, ["loss"]), (SFT, ["loss", "perplexity"])):
        results = make_header(STATE, settings, {}, "transformers", objective)["model-index"][0]["results"]
        assert [metric["type"] for metric in results[0]["metrics"]] == metrics
