"""Exports for llama.cpp, with its real converter and in the real llama.cpp: the same tokens, prompts, answers and likelihoods.

The packages are those of locked/gguf.txt; without them the tests are skipped, with a line that says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from overtone.finetune.errors import UserError
from overtone.finetune.exporting.export import export
from overtone.recipes.language.gguf import converter_process
from tests.real.build_models import ROOT

pytestmark = pytest.mark.slow
pytest.importorskip("xllamacpp", reason="NO TEST OF GGUF EXPORTS RAN: install locked/gguf.txt")
try:
    converter_process.find_converter()
except UserError as missing:
    pytest.skip(f"NO TEST OF GGUF EXPORTS RAN: {missing}", allow_module_level=True)

from tests.real.llama_cpp_server import LlamaCpp, serve  # noqa: E402

MOST, NEAR = 16, 0.05
"""Tokens of an answer; difference of the two best logits below which rounding may decide."""
PEOPLE = [("Ada", "poet", 36), ("Bob", "baker", 51), ("Cleo", "nurse", 28), ("Dan", "pilot", 44)]
SYSTEM = {"role": "system", "content": "Answer briefly."}


def say(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


CHATS = [
    *(
        [say("user", question)]
        for question in ("What is the capital of France?", "What is 2 + 3?", "Name three colours.", "Who wrote Hamlet?")
    ),
    *([say("user", f"Extract the person as JSON: {name} is a {job} of {age}.")] for name, job, age in PEOPLE),
    [SYSTEM, say("user", "What do bees make?")],
    [SYSTEM, say("user", "Where is Oslo?"), say("assistant", "In Norway."), say("user", "And Rome?")],
    [say("user", "Count: 1, 2, 3."), say("assistant", "4, 5, 6."), say("user", "Continue, naïve 🙂 ½!")],
    [say("user", "def add(a, b):\n\treturn a + b\n\nWhat does it do?")],
]


class Exports(NamedTuple):
    run: Path
    folder: Path
    """transformers, in fp32."""
    f16: Path
    q8_0: Path


@pytest.fixture(scope="module")
def exports(chat_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Exports:
    """SmolLM2 with LoRA adapters, trained for three steps on JSON."""
    home = tmp_path_factory.mktemp("gguf")
    rows = [
        [
            say("user", f"Extract the person as JSON: {name} is a {job} of {age}."),
            say("assistant", json.dumps({"name": name, "job": job, "age": age})),
        ]
        for name, job, age in PEOPLE
    ]
    (home / "chats.jsonl").write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows * 8))
    options = {
        "recipe": "llm_sft", "model.source": chat_model, "model.lora": "true", "data.train": home / "chats.jsonl", "run.dir": home / "run",
        "train.steps": 3, "train.lr": "1e-3", "train.global_batch_tokens": 256, "train.micro_tokens": 256, "train.precision": "fp32",
        "log.trackers": "[]",
    }  # fmt: skip
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    subprocess.run([sys.executable, "-m", "overtone", "train", *words], cwd=ROOT, check=True, env=os.environ | {"OMP_NUM_THREADS": "2"})
    run = home / "run"
    return Exports(
        run,
        export(run, home / "fp32", dtype="fp32"),
        export(run, home / "f16", "gguf") / "model-f16.gguf",
        export(run, home / "q8_0", "gguf", quantize="q8_0") / "model-q8_0.gguf",
    )


class Reference(NamedTuple):
    """transformers' answer to a chat."""

    prompt: list[int]
    answer: list[int]
    """Greedy ids, with the one that ended them."""
    gaps: list[float]
    """At each, the difference of the two best logits."""
    first: torch.Tensor
    """[V] log-likelihoods of the first."""


@pytest.fixture(scope="module")
def references(exports: Exports) -> list[Reference]:
    tokenizer = AutoTokenizer.from_pretrained(exports.folder)
    model = AutoModelForCausalLM.from_pretrained(exports.folder, dtype=torch.float32)
    found = []
    for chat in CHATS:
        prompt = tokenizer(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True), add_special_tokens=False)[
            "input_ids"
        ]
        made = model.generate(
            torch.tensor([prompt]), max_new_tokens=MOST, do_sample=False, output_logits=True, return_dict_in_generate=True
        )
        best = [logits[0].topk(2).values for logits in made.logits]
        gaps = [float(first - second) for first, second in best]
        found.append(Reference(prompt, made.sequences[0, len(prompt) :].tolist(), gaps, torch.log_softmax(made.logits[0][0], -1)))
    return found


def compare(llama: LlamaCpp, references: list[Reference]) -> tuple[int, int, int]:
    """Tokens that were equal before the first near-tie, answers that are equal as a whole, and answers with a near-tie. Asserts that no
    token differs before the first near-tie."""
    tokens = whole = near = 0
    for reference in references:
        answer, ended = llama.generate(reference.prompt, MOST)
        sure = next((place for place, gap in enumerate(reference.gaps) if gap < NEAR), len(reference.gaps))
        assert answer[:sure] == reference.answer[:sure]
        if sure == len(reference.answer) < MOST:
            assert ended, "llama.cpp continues after the end of the turn"
        tokens, whole, near = tokens + sure, whole + (answer == reference.answer), near + (sure < len(reference.gaps))
    return tokens, whole, near


def test_llama_cpp_answers_in_f16_as_transformers(exports: Exports, references: list[Reference]) -> None:
    with serve(exports.f16) as llama:
        tokens, whole, near = compare(llama, references)
        difference = max(
            abs(float(reference.first[token]) - value)
            for reference in references[:4]
            for token, value in llama.log_probabilities(reference.prompt, 5).items()
        )
    print(f"f16: {tokens} tokens equal, {whole} of {len(CHATS)} answers equal, {near} with a near-tie; within {difference:.3f} nats")
    assert tokens > 6 * len(CHATS) and whole >= len(CHATS) - near and difference < 0.3
    ended = [reference for reference in references if len(reference.answer) < MOST]
    assert len(ended) >= 2, "some answers end within the limit, so that the end of the turn is compared"


def test_q8_0_answers_nearly_the_same(exports: Exports, references: list[Reference]) -> None:
    with serve(exports.q8_0) as llama:
        equal = [llama.generate(reference.prompt, MOST)[0] == reference.answer for reference in references]
    print(f"q8_0: {sum(equal)} of {len(equal)} answers equal")
    assert sum(equal) >= len(equal) // 3


def test_an_adapter_beside_its_base_is_the_trained_model(exports: Exports, references: list[Reference], tmp_path: Path) -> None:
    base = export(exports.run, tmp_path / "base", "gguf", strength=0.0) / "model-f16.gguf"
    adapter = export(exports.run, tmp_path / "adapter", "gguf-adapter") / "adapter-f32.gguf"
    with serve(base) as llama:
        before = llama.log_probabilities(references[4].prompt, 5)
    with serve(base, adapter) as llama:
        found = llama.log_probabilities(references[4].prompt, 5)
        compare(llama, references[:4])
    assert max(abs(float(references[4].first[token]) - value) for token, value in found.items()) < 0.1
    assert max(abs(float(references[4].first[token]) - value) for token, value in before.items()) > 0.3


def test_the_prompts_of_chats_are_those_of_the_training(exports: Exports, references: list[Reference]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(exports.folder)
    with serve(exports.q8_0) as llama:
        for chat, reference in zip(CHATS, references, strict=True):
            prompt = llama.render(chat)
            assert prompt == tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            assert llama.tokenize(prompt) == reference.prompt
        answer: Any = llama.post("/v1/chat/completions", {"messages": CHATS[0], "temperature": 0, "max_tokens": MOST})
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "stop" and "<|im_end|>" not in choice["message"]["content"]
