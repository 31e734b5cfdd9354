"""What an exported model answers, when it stops, and what it cannot be asked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from finetune.cli import generate
from finetune.errors import UserError
from recipes.llm_sft import generation
from recipes.llm_sft.generation import Answerer, Manner
from tests.recipes.llm_sft import tiny_runs


@pytest.fixture(scope="module")
def answerer(exported: Path) -> Answerer:
    return generation.load(exported)


@pytest.fixture
def bare(exported: Path, tmp_path: Path) -> Path:
    """The model without its chat template."""
    folder = shutil.copytree(exported, tmp_path / "bare")
    (folder / "chat_template.jinja").unlink()
    return folder


def told(folder: Path, *argv: str) -> str:
    with pytest.raises(UserError) as caught:
        generation.generate(folder, [*argv])
    return str(caught.value)


def test_answers_keep_cudnn_out_of_sdpa(exported: Path) -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    generation.load(exported)
    assert not torch.backends.cuda.cudnn_sdp_enabled(), "a cache that grows would need another plan for each token"


def test_the_verb_prints_the_answer_that_was_learned(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for asked, said in tiny_runs.CHATS:
        assert generate.main(["--model", str(exported), "--prompt", asked]) == 0
        assert capsys.readouterr().out == f"{said}\n"


def test_it_stops_at_the_end_of_turn_though_the_base_names_another(answerer: Answerer) -> None:
    asked, said = tiny_runs.CHATS[0]
    ids = generation.prompt_ids(generation.row_of(asked, None, answerer.tokenizer), answerer.tokenizer)
    assert answerer.stops == [0, answerer.tokenizer.eos_token_id]
    assert generation.respond(answerer, ids, Manner()) == generation.Answer(said, True)
    assert generation.respond(answerer, ids, Manner(tokens=2)).ended is False
    run_on = generation.respond(Answerer(answerer.model, answerer.tokenizer, [0]), ids, Manner(tokens=40))
    assert run_on.text.startswith(said) and len(run_on.text) > len(said), "without that token it would run on"


def test_an_answer_that_was_cut_off_is_said_to_be(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generation.generate(exported, ["--prompt", "Good day.", "--max-new-tokens", "1"]) == 0
    assert "cut off after 1 tokens" in capsys.readouterr().err


def test_it_is_given_what_was_trained(answerer: Answerer) -> None:
    text = answerer.tokenizer.decode(
        generation.prompt_ids(generation.row_of("Good day.", "Be brief.", answerer.tokenizer), answerer.tokenizer)
    )
    assert text.endswith("<|im_start|>user\nGood day.<|im_end|>\n<|im_start|>assistant\n") and "system\nBe brief." in text


def test_the_settings_of_the_base_do_not_mix_in(exported: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(exported, tmp_path / "export")
    loud = {"do_sample": True, "temperature": 5.0, "repetition_penalty": 9.0, "min_new_tokens": 40, "transformers_version": "4.57.0"}
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").write_text(json.dumps({**settings, **loud}))
    assert generation.sample(folder, [asked for asked, _ in tiny_runs.CHATS]) == [said for _, said in tiny_runs.CHATS]


def test_sampling_follows_its_seed_and_its_numbers(answerer: Answerer) -> None:
    ids = generation.prompt_ids({"prompt": "The weather"}, answerer.tokenizer)

    def drawn(seed: int, manner: Manner) -> str:
        torch.manual_seed(seed)
        return generation.respond(answerer, ids, manner).text

    hot = Manner(20, 3.0)
    assert drawn(1, hot) == drawn(1, hot) != drawn(2, hot)
    assert drawn(1, Manner(20, 3.0, 1e-6)) == drawn(2, Manner(20)), "only the most likely token is left"
    assert generation.settings(hot, 20, [1]).top_k == 0, "transformers would keep 50"


@pytest.mark.parametrize(
    ("argv", "temperature", "top_p"),
    [("", 0.0, 1.0), ("--temperature 0.7", 0.7, 1.0), ("--top-p 0.9", 1.0, 0.9), ("--temperature 0", 0, 1)],
)
def test_greedy_by_default(argv: str, temperature: float, top_p: float) -> None:
    manner = generation.manner_of(generation.parse(["--prompt", "x", *argv.split()]))
    assert (manner.temperature, manner.top_p) == (temperature, top_p)


def test_a_file_of_prompts(exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tiny_runs.CHATS
    row = {"messages": [{"role": "user", "content": second[0]}]}
    (tmp_path / "asked").write_text(f"{first[0]}\n\n{json.dumps(row)}\n")
    assert generation.generate(exported, ["--prompt-file", str(tmp_path / "asked")]) == 0
    assert capsys.readouterr().out == f"── 1\n{first[1]}\n── 2\n{second[1]}\n"


def test_without_a_template_a_text_is_continued(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n"
    assert generation.generate(bare, ["--prompt", prompt]) == 0
    assert capsys.readouterr().out == "I am a machine.\n"
    assert "no place for a system message" in told(bare, "--prompt", "Hi.", "--system", "Be brief.")


def test_what_cannot_be_asked(exported: Path, tmp_path: Path) -> None:
    assert "no model there (config.json is missing)" in told(tmp_path, "--prompt", "Hi.")
    assert "--prompt is empty" in told(exported, "--prompt", "  \n")
    assert "and the model has 96 positions; shorten it" in told(exported, "--prompt", "boats " * 96)
    assert "--max-new-tokens 0: at least 1" in told(exported, "--prompt", "Hi.", "--max-new-tokens", "0")
    assert "--temperature -1: from 0" in told(exported, "--prompt", "Hi.", "--temperature", "-1")
    assert "--top-p 0: a probability above 0" in told(exported, "--prompt", "Hi.", "--top-p", "0")
    assert "drop one of them" in told(exported, "--prompt", "Hi.", "--top-p", "0.5", "--temperature", "0")
    assert "cannot be read" in told(exported, "--prompt-file", str(tmp_path / "none"))
    for text, words in (
        ("\n \n", "holds no prompt"),
        ('Hi.\n{"messages": \n', r"asked:2: "),
        ('{"messages": []}', "asked:1: expected"),
        ('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}', "is what the model is to write"),
        ('{"messages": [{"role": "system", "content": "a"}]}', "and --system gives another"),
    ):
        (tmp_path / "asked").write_text(text)
        assert words in told(exported, "--prompt-file", str(tmp_path / "asked"), "--system", "Be brief.")


def test_the_answer_stays_within_the_positions(answerer: Answerer) -> None:
    ids = generation.prompt_ids({"prompt": "boats " * 16}, answerer.tokenizer)
    assert tiny_runs.POSITIONS - 30 < len(ids) < tiny_runs.POSITIONS
    unstopped = Answerer(answerer.model, answerer.tokenizer, [])
    assert not generation.respond(unstopped, ids, Manner()).ended
    assert answerer.model.generation_config.max_new_tokens == tiny_runs.POSITIONS - len(ids)


def test_a_folder_that_holds_no_model_is_named(exported: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(exported, tmp_path / "export")
    (folder / "model.safetensors").unlink()
    assert "contains no *.safetensors weights" in told(folder, "--prompt", "Hi.")
