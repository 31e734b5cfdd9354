"""Tests of `overtone.recipes.language.chat_model_loading`: a recipe with no options of its own gets model, tokenizer and state from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from overtone.finetune.config import Config, resolve
from overtone.finetune.errors import UserError
from overtone.recipes.language.chat_model_loading import ChatProcessor, load_chat_model, read_given_template, sketch_chat_model
from overtone.recipes.language.modeling.causal_model import CausalModel
from overtone.recipes.language.options import ChatOptions
from overtone.recipes.language.state import ChatState
from overtone.recipes.transformers_release import describe_old_release
from tests.recipes.llm_sft import tiny_runs


def config(folder: Path, *overrides: tuple[str, str]) -> Config[ChatOptions]:
    if not (folder / "base").is_dir():
        tiny_runs.write_base(folder / "base")
    return resolve("llm_sft", ChatOptions, [], [("model.source", str(folder / "base")), *overrides])


def test_the_processor_has_the_tokenizer_and_the_options(tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text("{{ messages }}")
    given = config(tmp_path, ("options.chat_template", str(tmp_path / "own.jinja")), ("options.allow_dropped", "system"))
    state = ChatState(chat_template=read_given_template(given.options))
    assert state.chat_template == "{{ messages }}"
    loaded = load_chat_model(given, state)
    assert isinstance(loaded.processor, ChatProcessor) and loaded.processor.options is given.options
    assert loaded.processor.tokenizer.chat_template == "{{ messages }}" and loaded.state is state
    dropped, attention, *release = loaded.remarks
    assert dropped == "not an error if the chat template drops it: system (options.allow_dropped)"
    assert attention.startswith("attention: ") and tuple(release) == describe_old_release()


def test_a_template_that_is_missing_is_refused(tmp_path: Path) -> None:
    assert read_given_template(ChatOptions()) is None
    with pytest.raises(UserError, match=r"options.chat_template: .*none.jinja cannot be read"):
        read_given_template(ChatOptions(chat_template=tmp_path / "none.jinja"))


def test_a_sketch_makes_the_same_processor_when_rows_are_read(tmp_path: Path) -> None:
    given = config(tmp_path)
    sketch = sketch_chat_model(given)
    assert sketch.loaded.processor is None and sketch.processor().options is given.options
    assert sketch.batch(2, 5).targets == {"nll": 8, "accuracy": 8, "expert_balance": 2}


def test_more_tokens_than_embeddings_are_refused(tmp_path: Path) -> None:
    sketch = sketch_chat_model(config(tmp_path))
    assert isinstance(sketch.loaded.model, CausalModel)
    sketch.loaded.model.vocabulary = 3
    with pytest.raises(UserError, match=r"the tokenizer has .* tokens and the model 3 embeddings"):
        sketch.processor()
