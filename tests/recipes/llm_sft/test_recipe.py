"""The contract's small functions, on a tokenizer and a model that are real and tiny."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from finetune.config import resolve
from finetune.errors import UserError
from recipes.llm_sft import recipe
from recipes.llm_sft.recipe import RECIPE, Processor
from tests.recipes.llm_sft import tiny_runs

CHAT = tiny_runs.rows()[0]


def loaded(folder: Path, *overrides: tuple[str, str]) -> Any:
    if not (folder / "base").is_dir():
        tiny_runs.write_base(folder / "base")
    return RECIPE.load(resolve("llm_sft", RECIPE.Options, [], [("model.source", str(folder / "base")), *overrides]))


def test_a_row_becomes_ids_of_which_the_answer_is_learned(tmp_path: Path) -> None:
    processor = loaded(tmp_path).processor
    sample = RECIPE.read(CHAT, processor)
    learned = processor.tokenizer.decode(sample["ids"][sample["supervised"]])
    assert learned.startswith("And to you.") and "Good day." not in learned
    assert RECIPE.length(sample) == len(sample["ids"]) == len(sample["supervised"])


def test_every_way_of_supervision_is_passed_on(tmp_path: Path) -> None:
    everything = loaded(tmp_path, ("options.supervise", "everything"))
    sample = RECIPE.read(CHAT, everything.processor)
    assert int((~sample["supervised"]).sum()) == 1, "all but the first"
    assert everything.state == {"supervise": "everything", "chat_template": None}
    assert everything.remarks[0] == "options.supervise: everything, so questions are learned like answers"


def test_what_is_learned_and_by_which_attention_is_remarked_on_before_the_first_step(tmp_path: Path) -> None:
    learned, attention = loaded(tmp_path, ("options.attention", "sdpa")).remarks
    assert "supervised is what the chat template adds for the assistant" in learned
    assert attention.startswith("attention: sdpa, as asked") and loaded(tmp_path).remarks[1].startswith("attention: ")


def test_a_tokenizer_without_template_trains_on_texts_and_says_so(tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path).processor.tokenizer
    tokenizer.chat_template = None
    assert recipe.about_supervision(tokenizer, "assistant").startswith("chats cannot be trained on, only texts of prompt and completion: ")
    processor = Processor(tokenizer, "assistant")
    assert RECIPE.read({"prompt": "1, 2, ", "completion": "3"}, processor)["supervised"].any()
    with pytest.raises(UserError, match="template"):
        RECIPE.read(CHAT, processor)


def test_a_given_template_is_used_and_belongs_to_the_run(tmp_path: Path) -> None:
    template = tmp_path / "own.jinja"
    template.write_text("{% for message in messages %}{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}{% endfor %}")
    found = loaded(tmp_path, ("options.chat_template", str(template)))
    assert found.state["chat_template"] == template.read_text() == found.processor.tokenizer.chat_template


def test_the_loss_has_one_weighted_term_and_one_that_is_watched(tmp_path: Path) -> None:
    batch = RECIPE.collate([RECIPE.read(row, loaded(tmp_path).processor) for row in tiny_runs.rows()])
    terms = RECIPE.loss(lambda tensors: (torch.tensor(4.0), torch.tensor(2.0)), batch)  # type: ignore[arg-type]
    assert {name: (float(term.sum), term.weight) for name, term in terms.items()} == {"nll": (4.0, 1.0), "accuracy": (2.0, 0.0)}
    assert terms.keys() == batch.targets.keys()
    assert RECIPE.report({"nll": 2.0, "loss": 2.0})["perplexity"] == math.exp(2.0)
    assert math.isfinite(RECIPE.report({"nll": 1e9})["perplexity"])
