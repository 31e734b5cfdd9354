"""Tests of the recipe's small functions with a real tokenizer and a tiny model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.config import resolve
from overtone.finetune.errors import UserError
from overtone.finetune.exporting import export
from overtone.finetune.modeling import loading
from overtone.recipes.language.chat_model_loading import ChatProcessor
from overtone.recipes.llm_sft import recipe
from overtone.recipes.llm_sft.options import Options
from overtone.recipes.llm_sft.recipe import RECIPE
from overtone.recipes.transformers_release import describe_old_release
from tests.finetune.data.test_index_workers import check_other_processes
from tests.finetune.tiny import let_go
from tests.recipes.llm_sft import tiny_runs

CHAT = tiny_runs.rows()[0]


def loaded(folder: Path, *overrides: tuple[str, str]) -> Any:
    if not (folder / "base").is_dir():
        tiny_runs.write_base(folder / "base")
    return RECIPE.load(resolve("llm_sft", RECIPE.Options, [], [("model.source", str(folder / "base")), *overrides]))


def test_the_answer_of_a_row_is_supervised(tmp_path: Path) -> None:
    processor = loaded(tmp_path).processor
    sample = RECIPE.read(CHAT, processor, Path())
    learned = processor.tokenizer.decode(sample["ids"][sample["supervised"]])
    assert learned.startswith("And to you.") and "Good day." not in learned
    assert RECIPE.length(sample) == len(sample["ids"]) == len(sample["supervised"])


@pytest.mark.slow
def test_other_processes_read_the_same_samples(tmp_path: Path) -> None:
    check_other_processes(Path(recipe.__file__).parent, loaded(tmp_path).processor, tiny_runs.rows(), tmp_path)


def test_the_option_supervise_is_passed_on(tmp_path: Path) -> None:
    everything = loaded(tmp_path, ("options.supervise", "everything"))
    sample = RECIPE.read(CHAT, everything.processor, Path())
    assert int((~sample["supervised"]).sum()) == 1, "all but the first"
    assert everything.state.as_json() == {"supervise": "everything", "chat_template": None}
    assert everything.remarks[0] == "supervised: every token, questions included (options.supervise: everything)"


def test_supervision_and_attention_are_logged_before_the_first_step(tmp_path: Path) -> None:
    learned, attention, *release = loaded(tmp_path, ("options.attention", "sdpa")).remarks
    assert tuple(release) == describe_old_release()
    assert "supervised: the text that the chat template adds for the assistant" in learned
    assert attention.startswith("attention: sdpa, as configured") and loaded(tmp_path).remarks[1].startswith("attention: ")


def test_what_the_template_may_drop_is_logged_and_counted(tmp_path: Path) -> None:
    template = tmp_path / "own.jinja"
    template.write_text(
        "{% for m in messages %}{% if m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    row = {"messages": [{"role": "system", "content": "Be brief."}, {**CHAT["messages"][0], "mood": 1}, *CHAT["messages"][1:]]}
    chosen = ("options.chat_template", str(template))
    with pytest.raises(UserError, match="ignores the content of messages.0. .system.*--options.allow_dropped system"):
        RECIPE.read(row, loaded(tmp_path, chosen).processor, Path())
    found = loaded(tmp_path, chosen, ("options.allow_dropped", "system"))
    assert found.remarks[1] == "not an error if the chat template drops it: system (options.allow_dropped)"
    assert RECIPE.read(row, found.processor, Path())["supervised"].any()
    assert RECIPE.list_unused(row, found.processor) == ["key mood of messages", "system, which the chat template drops"]


def test_without_a_chat_template_only_texts_are_trained(tmp_path: Path) -> None:
    tokenizer = loaded(tmp_path).processor.tokenizer
    tokenizer.chat_template = None
    remark = recipe.describe_supervision(tokenizer, "assistant")
    assert remark.startswith("only raw texts, and rows with prompt and completion as text, can be trained, and no chats: ")
    processor = ChatProcessor(tokenizer, Options())
    assert RECIPE.read({"prompt": "1, 2, ", "completion": "3"}, processor, Path())["supervised"].any()
    with pytest.raises(UserError, match="template"):
        RECIPE.read(CHAT, processor, Path())


def test_a_given_template_is_used_and_saved_with_the_run(tmp_path: Path) -> None:
    template = tmp_path / "own.jinja"
    template.write_text("{% for message in messages %}{% generation %}{{ message.content }}<|im_end|>{% endgeneration %}{% endfor %}")
    found = loaded(tmp_path, ("options.chat_template", str(template)))
    assert found.state.chat_template == template.read_text() == found.processor.tokenizer.chat_template


@pytest.mark.parametrize(("supervise", "described"), [("assistant", "every turn of the assistant"), ("everything", "every token")])
def test_the_card_says_what_was_learned(tmp_path: Path, supervise: str, described: str) -> None:
    out = export.export(tiny_runs.trained(tmp_path, ("train.steps", "1"), ("options.supervise", supervise)), tmp_path / "out")
    card = (out / "README.md").read_text()
    assert f"| Supervised | {described} |" in card and "tags:\n- sft" in card


def permuted(base: Path) -> str:
    """Exchange the ids of six tokens."""
    path = base / "tokenizer.json"
    content = json.loads(path.read_text())
    words = content["model"]["vocab"]
    six = [word for word, number in words.items() if 100 <= number < 106]
    words |= dict(zip(six, [words[word] for word in [*six[1:], six[0]]], strict=True))
    path.write_text(json.dumps(content))
    return "tokenizer.json"


def another_special_token(base: Path) -> str:
    # From version 5 on, transformers writes special tokens into the other file.
    name = next(each for each in ("special_tokens_map.json", "tokenizer_config.json") if (base / each).is_file())
    path = base / name
    path.write_text(path.read_text().replace("<|im_end|>", "<|im_start|>"))
    return name


def another_template(base: Path) -> str:
    path = base / "chat_template.jinja"
    path.write_text(path.read_text() + "\n")
    return "chat_template.jinja"


def a_template_for_tools(base: Path) -> str:
    (base / "additional_chat_templates").mkdir()
    (base / "additional_chat_templates" / "tool_use.jinja").write_text("{{ messages }}")
    return "additional_chat_templates/tool_use.jinja"


def test_a_run_is_neither_resumed_nor_exported_with_another_tokenizer_or_template(tmp_path: Path) -> None:
    run = tiny_runs.trained(tmp_path, ("train.steps", "1"))
    shutil.move(tmp_path / "base", tmp_path / "kept")
    changes = (permuted, another_special_token, another_template, a_template_for_tools)
    for number, change in enumerate(changes):
        base = shutil.copytree(tmp_path / "kept", tmp_path / "base")
        before = loading.file_digests(base, RECIPE.base_folders)
        name = change(base)
        assert loading.file_digests(base, RECIPE.base_folders) != before, name
        let_go(run)
        refusal = rf"{name} was (changed|added \(move .* out of that folder\))\n"
        with pytest.raises(UserError, match=rf"belongs to a run with other(?s:.*): {refusal}"):
            tiny_runs.trained(tmp_path, ("train.steps", "2"))
        with pytest.raises(UserError, match=rf"is not the one that was trained on \({name} was (changed|added)\)"):
            export.export(run, tmp_path / f"out-{number}")
        shutil.rmtree(base)
    shutil.copytree(tmp_path / "kept", tmp_path / "base")
    let_go(run)
    assert checkpoint.find(tiny_runs.trained(tmp_path, ("train.steps", "2"))).name == "step-00000002", "the original files, copied back"
