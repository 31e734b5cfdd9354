"""Tests of `overtone.recipes.language.cli.generate`: prompts, printed answers, and refusals."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest

from overtone.finetune.cli import generate as verb
from overtone.finetune.errors import UserError
from overtone.recipes.language.cli import generate
from overtone.recipes.language.cli.arguments import make_generate_parser
from tests.recipes.llm_sft import tiny_runs


@pytest.fixture
def bare(exported: Path, tmp_path: Path) -> Path:
    """The model without its chat template."""
    folder = shutil.copytree(exported, tmp_path / "bare")
    (folder / "chat_template.jinja").unlink()
    return folder


def refusal(folder: Path, *argv: str) -> str:
    with pytest.raises(UserError) as caught:
        generate.generate(folder, [*argv])
    return str(caught.value)


def test_the_verb_prints_the_learned_answer(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for prompt, answer in tiny_runs.CHATS:
        assert verb.main(["--model", str(exported), "--prompt", prompt]) == 0
        assert capsys.readouterr().out == f"{answer}\n"


def test_an_answer_that_is_cut_off_is_reported(exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.generate(exported, ["--prompt", "Good day.", "--max-new-tokens", "1"]) == 0
    assert "cut off after 1 tokens" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "temperature", "top_p"),
    [("", 0.0, 1.0), ("--temperature 0.7", 0.7, 1.0), ("--top-p 0.9", 1.0, 0.9), ("--temperature 0", 0, 1)],
)
def test_generation_is_greedy_by_default(argv: str, temperature: float, top_p: float) -> None:
    settings = generate.read_settings(make_generate_parser().parse_args(["--prompt", "x", *argv.split()]))
    assert (settings.sampling_temperature, settings.top_p or 1.0) == (temperature, top_p)


def test_prompts_are_read_from_a_file(exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tiny_runs.CHATS
    row = {"messages": [{"role": "user", "content": second[0]}]}
    (tmp_path / "prompts").write_text(f"{first[0]}\n\n{json.dumps(row)}\n")
    assert generate.generate(exported, ["--prompt-file", str(tmp_path / "prompts")]) == 0
    assert capsys.readouterr().out == f"── 1\n{first[1]}\n── 2\n{second[1]}\n"


def test_a_line_of_a_prompt_file_ends_at_a_line_feed_alone(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "a\u2028b\x85c"}]}
    path = tmp_path / "prompts"
    path.write_bytes(f"{json.dumps(row, ensure_ascii=False)}\r\none\x0ctwo\rthree\n".encode("utf-8-sig"))
    found = generate.read_prompts(make_generate_parser().parse_args(["--prompt-file", str(path)]))
    assert found == [row, "one\x0ctwo\rthree"]


def test_a_prompt_comes_from_standard_input(exported: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for prompt in ("Who are you?", "-"):
        monkeypatch.setattr("sys.stdin", io.StringIO("Who are you?\n"))
        assert generate.generate(exported, ["--prompt", prompt]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1] != ""
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    with pytest.raises(UserError, match="standard input is empty"):
        generate.generate(exported, ["--prompt", "-"])


def test_without_a_chat_template_a_text_is_continued(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prompt = "<|im_start|>user\nWho are you?<|im_end|>\n<|im_start|>assistant\n"
    assert generate.generate(bare, ["--prompt", prompt]) == 0
    assert capsys.readouterr().out == "I am a machine.\n"
    assert "so it takes no system message" in refusal(bare, "--prompt", "Hi.", "--system", "Be brief.")


def test_bad_requests_are_refused(exported: Path, tmp_path: Path) -> None:
    assert "is not a model (it has no config.json)" in refusal(tmp_path, "--prompt", "Hi.")
    assert "--prompt is empty" in refusal(exported, "--prompt", "  \n")
    assert "and the model has 96 positions; shorten the prompt" in refusal(exported, "--prompt", "boats " * 96)
    assert "--max-new-tokens 0: must be at least 1" in refusal(exported, "--prompt", "Hi.", "--max-new-tokens", "0")
    assert "--temperature -1: must not be negative" in refusal(exported, "--prompt", "Hi.", "--temperature", "-1")
    assert "--top-p 0: must be a probability above 0" in refusal(exported, "--prompt", "Hi.", "--top-p", "0")
    assert "remove one of them" in refusal(exported, "--prompt", "Hi.", "--top-p", "0.5", "--temperature", "0")
    assert "cannot be read" in refusal(exported, "--prompt-file", str(tmp_path / "none"))
    for text, words in (
        ("\n \n", "contains no prompt"),
        ('Hi.\n{"messages": \n', r"prompts:2: "),
        ('{"messages": []}', "prompts:1: expected"),
        ('{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}', "which the model is to generate"),
        ('{"messages": [{"role": "system", "content": "a"}]}', "and --system gives another"),
    ):
        (tmp_path / "prompts").write_text(text)
        assert words in refusal(exported, "--prompt-file", str(tmp_path / "prompts"), "--system", "Be brief.")


def test_a_folder_without_weights_is_refused(exported: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(exported, tmp_path / "export")
    (folder / "model.safetensors").unlink()
    assert "contains no *.safetensors weights" in refusal(folder, "--prompt", "Hi.")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--prompt", "Hi.", "--engine", "ray"], "--engine ray answers a file of prompts; give --prompt-file"),
        (["--prompt-file", "f.txt", "--workers", "2"], "--workers needs --engine ray"),
    ],
)
def test_options_of_a_cluster_are_checked_before_the_model_is_loaded(argv: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        generate.generate(tmp_path / "nothing", argv)


@pytest.mark.ci
@pytest.mark.slow
def test_a_ray_cluster_that_loses_a_worker_answers_as_one_process(exported: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    from tests.launch import ray_generation, ray_nodes

    (tmp_path / "prompts.txt").write_text("Who are you?\n" * 16)
    common = [
        "--model",
        exported,
        "--prompt-file",
        tmp_path / "prompts.txt",
        "--temperature",
        "2",
        "--seed",
        "7",
        "--max-new-tokens",
        "200",
    ]
    local = ray_generation.run("generate", *common)
    assert local.startswith("── 1\n") and local.count("── ") == 16 and len(set(local.split("── "))) > 8
    engine = ["--engine", "ray", "--ray-address"]
    with ray_nodes.cluster(2) as nodes, ray_generation.started("generate", *common, *engine, nodes.address) as process:
        assert process.stdout is not None
        printed = process.stdout.readline()
        ray_generation.kill_a_worker(process, lambda: True)
        printed += process.stdout.read()
        assert process.wait(timeout=ray_generation.PATIENCE) == 0 and printed == local
    assert not [*ray_generation.ROOT.glob(".generate*")]
