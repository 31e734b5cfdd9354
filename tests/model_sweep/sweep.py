"""What works for an architecture: each verb on a tiny random model of it, compared with stock transformers, which computes rows one by one.

A verb is right, refused with one sentence, or wrong: another number, or a traceback.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.nn import functional
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from overtone.finetune.__main__ import main
from tests.model_sweep.architectures import ARCHITECTURES, SHAPE

END = "<|im_end|>"
SPECIAL = ("<|endoftext|>", "<|im_start|>", END)
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
STD = 0.3
"""Of random weights: so large that each part of a model matters for the loss."""
BOUND = 1e-4
"""Largest relative difference of a loss in fp32 that is rounding."""
QUESTION = "q1 what is it?"
TOKENS = 6
"""Generated."""
RIGHT = "right"


@dataclass(frozen=True)
class Verdict:
    """Of one verb for one architecture."""

    kind: str
    """`RIGHT`, "refused", "no estimate" or "WRONG"."""
    reason: str = ""

    @property
    def acceptable(self) -> bool:
        return self.kind != "WRONG"


def make_rows() -> list[dict[str, str]]:
    """Short and long rows in turns: the long ones pass the thresholds of the architectures."""
    short = ({"prompt": f"q{number} what is it?", "completion": f" answer number {number} is short."} for number in range(0, 8, 2))
    long = ({"prompt": f"q{number} " + "why " * 20, "completion": " because " * 5 + str(number)} for number in range(1, 8, 2))
    return [row for pair in zip(short, long, strict=True) for row in pair]


def make_tokenizer() -> Any:
    """One token for each byte."""
    whole = Tokenizer(
        models.BPE(vocab={sign: number for number, sign in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, merges=[])
    )
    whole.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    whole.decoder = decoders.ByteLevel()
    whole.add_special_tokens(list(SPECIAL))
    made = PreTrainedTokenizerFast(tokenizer_object=whole, eos_token=END, pad_token=SPECIAL[0])
    made.chat_template = TEMPLATE
    return made


def write_base(folder: Path, name: str) -> None:
    """A model with random weights and a tokenizer."""
    tokenizer = make_tokenizer()
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": tokenizer.pad_token_id}
    given = {"vocab_size": (len(tokenizer) + 7) // 8 * 8, **ids, **SHAPE, **ARCHITECTURES[name]}
    kept = {key: value for key, value in given.items() if value is not None and key != "model_type"}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(given["model_type"], **kept)).float()
    with torch.no_grad():
        saved_buffers = model.state_dict().keys() - dict(model.named_parameters()).keys()
        for name, value in model.state_dict().items():
            if value.is_floating_point() and (value.ndim > 1 or name in saved_buffers):
                value.normal_(std=STD)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@torch.no_grad()
def compute_stock_loss(folder: Path) -> float:
    """Mean loss of the completions' tokens. Each row has a new model, as a forward may change its state."""
    tokenizer, total, count = AutoTokenizer.from_pretrained(folder), 0.0, 0
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    for row in make_rows():
        model = copy.deepcopy(loaded)
        prompt = tokenizer(row["prompt"], add_special_tokens=False)["input_ids"]
        answer = tokenizer(row["completion"] + tokenizer.eos_token, add_special_tokens=False)["input_ids"]
        logits = model(torch.tensor([prompt + answer]), use_cache=False).logits[0].float()
        total += float(functional.cross_entropy(logits[len(prompt) - 1 : -1], torch.tensor(answer), reduction="sum"))
        count += len(answer)
    return total / count


def run_verb(*arguments: object) -> tuple[int, str]:
    """Exit code and output of a command. A traceback is not caught."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main([str(argument) for argument in arguments])
    return code, out.getvalue()


def refusal(output: str) -> Verdict:
    """From the `error:` line of a command."""
    lines = [line for line in output.split("\n") if line.startswith("error:")]
    return Verdict("refused", lines[0].removeprefix("error: ")) if len(lines) == 1 else Verdict("WRONG", output[-300:])


def train(home: Path, run: str, *more: object) -> Verdict:
    """One step on all rows: its loss is that of the base."""
    code, output = run_verb(
        "train", "--recipe", "llm_sft", "--run.dir", home / run, "--model.source", home / "base", "--data.train", home / "rows.jsonl",
        "--train.precision", "fp32", "--train.steps", 1, "--train.global_batch_tokens", 1024, "--train.micro_tokens", 1024,
        "--data.window", 64, "--train.lr", "1e-3", "--train.warmup", 0, "--log.trackers", "[]", *more,
    )  # fmt: skip
    if code != 0:
        return refusal(output)
    events = [json.loads(line) for line in (home / run / "log.jsonl").read_text("utf-8").split("\n") if line]
    loss = next(event["loss"] for event in events if "loss" in event)
    expected = float((home / "expected").read_text())
    same = abs(loss - expected) <= BOUND * expected
    return Verdict(RIGHT) if same else Verdict("WRONG", f"loss {loss:.6g} instead of {expected:.6g}")


def plan(home: Path) -> Verdict:
    """Packed, unless that is refused. The architecture `full` has been trained, so that there is nothing else to refuse."""
    code, output = run_verb(
        "plan", "--recipe", "llm_sft", "--run.dir", home / "planned", "--model.source", home / "base", "--data.train", home / "rows.jsonl",
        "--data.packing", str((home / "packed" / "log.jsonl").is_file()).lower(),
    )  # fmt: skip
    if code == 2:
        return refusal(output)
    if code == 1:
        problems = output.partition("problems to fix before training")[2].split("\n")[1:2]
        return Verdict("refused", problems[0].strip("# ")) if problems else Verdict("WRONG", output[-300:])
    unknown = [line for line in output.split("\n") if line.startswith("# no estimate")]
    if unknown:
        return Verdict("no estimate", unknown[0])
    return Verdict(RIGHT) if code == 0 and "peak memory" in output else Verdict("WRONG", output[-300:])


def export(home: Path) -> Verdict:
    """Stock transformers loads the export, with every tensor of the base, and one step has made it better."""
    code, output = run_verb("export", home / "full", "--to", home / "exported")
    if code != 0:
        return refusal(output)
    _, loaded = AutoModelForCausalLM.from_pretrained(home / "exported", output_loading_info=True)
    if loaded["missing_keys"] or loaded["unexpected_keys"]:
        return Verdict("WRONG", f"tensors: {loaded}")
    loss, before = compute_stock_loss(home / "exported"), float((home / "expected").read_text())
    return Verdict(RIGHT) if loss < before else Verdict("WRONG", f"loss {loss:.6g} after training, {before:.6g} before")


@torch.no_grad()
def generate(home: Path) -> Verdict:
    """The same answer as greedy generation in stock transformers."""
    code, output = run_verb("generate", "--model", home / "exported", "--prompt", QUESTION, "--max-new-tokens", TOKENS)
    if code != 0:
        return refusal(output)
    tokenizer = AutoTokenizer.from_pretrained(home / "exported")
    model = AutoModelForCausalLM.from_pretrained(home / "exported", dtype=torch.float32).eval()
    asked = [{"role": "user", "content": QUESTION}]
    text = tokenizer.apply_chat_template(asked, add_generation_prompt=True, tokenize=False)
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    made = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=TOKENS)[0, ids.shape[1] :]
    expected = tokenizer.decode(made, skip_special_tokens=True)
    return Verdict(RIGHT) if expected.strip() in output else Verdict("WRONG", f"{output[-100:]!r} instead of {expected!r}")


VERBS: dict[str, Callable[[Path], Verdict]] = {
    "full": lambda home: train(home, "full", "--data.packing", "false"),
    "LoRA": lambda home: train(home, "lora", "--data.packing", "false", "--model.lora", "true"),
    "packing": lambda home: train(home, "packed", "--data.packing", "true"),
    "plan": plan,
    "export": export,
    "generate": generate,
}
"""In this order: `export` needs the run of `full`, and `generate` the export."""
NEEDS = {"export": "full", "generate": "export"}


def try_architecture(name: str, home: Path) -> dict[str, Verdict]:
    """The verdict of each verb. `home`: an empty folder."""
    (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in make_rows()), encoding="utf-8")
    write_base(home / "base", name)
    (home / "expected").write_text(repr(compute_stock_loss(home / "base")), encoding="utf-8")
    found: dict[str, Verdict] = {}
    for verb, run in VERBS.items():
        if verb in NEEDS and found[NEEDS[verb]].kind != RIGHT:
            found[verb] = Verdict("refused", f"there is no {NEEDS[verb]}")
            continue
        try:
            found[verb] = run(home)
        except Exception as error:  # a traceback for a user
            place = traceback.extract_tb(error.__traceback__)[-1]
            found[verb] = Verdict("WRONG", f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})")
    return found
