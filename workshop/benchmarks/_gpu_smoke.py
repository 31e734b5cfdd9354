"""Part `smoke`: whether everything runs, each in processes of its own, on the smallest models."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from overtone.finetune.config import resolve
from overtone.finetune.exporting.export_provenance import CARD
from overtone.finetune.monitoring.run_records import read_log
from overtone.finetune.planning.meta_device_estimate import estimate_run
from overtone.finetune.recipe import find_recipe, load_recipe
from overtone.finetune.storage import files
from overtone.recipes.llm_sft.model import tiny_checkpoint
from overtone.recipes.qwen3_tts.model.config_factory import SMALL
from workshop.benchmarks import _gpu, _voice
from workshop.benchmarks._gpu import ROOT, Bench
from workshop.benchmarks._gpu_figures import Cells, Figure, Part, Table

Keys = Mapping[str, object]
STEPS = 4
LAUNCH = ("-m", "accelerate.commands.accelerate_cli", "launch", "--config_file", str(ROOT / "configs" / "one_gpu.yaml"))
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "1")
ERROR = re.compile(r"^(?:\[rank\d+\]:\s*)?((?:error: |[\w.]*(?:Error|Exception)\b).*)", re.MULTILINE)
"""Message of one of our commands, or of Python, when it fails."""
WITH_A_GPU = (
    "tests/recipes/language/modeling/test_varlen_attention.py",
    "tests/finetune/modeling/test_loss_head.py",
    "tests/recipes/qwen3_tts/inference/test_graph_replay.py",
    "tests/finetune/test_synchronizations.py",
)
"""Tests that are skipped, in part, where there is no GPU, or that use one if there is."""
WIDTHS = {"hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
"""Widths of the chat model: every matrix has a multiple of 64 inputs, which QLoRA needs."""
TEXT = "She counted the boats."


class CommandFailedError(Exception):
    """With the first error that it printed."""


def make_models(bench: Bench) -> None:
    """The chat model alone: voices need qwen_tts, which its environment lacks, so the figures of voices make them."""
    _gpu.make(bench.folder / "smoke-chat", make_chat)


def voice_base(bench: Bench) -> Path:
    return _gpu.make(bench.folder / "smoke-voice", lambda folder: _voice.make(folder, SMALL["nano"], clips=12, frames=20))


def speaker(bench: Bench) -> Path:
    folder = _gpu.speaker_base(bench, "nano", SMALL["nano"])
    files.write_json(folder / CARD, {"recipe": "voice_clone"})
    return folder


def make_chat(folder: Path) -> None:
    tiny_checkpoint.build(folder / "base")
    shape = json.loads((folder / "base" / "config.json").read_text(encoding="utf-8")) | WIDTHS
    files.write_json(folder / "base" / "config.json", shape)
    files.write_bytes(folder / "base" / "model.safetensors", tiny_checkpoint.make_weights(shape, seed=0))
    chat = [{"role": "user", "content": "sort dcba"}, {"role": "assistant", "content": "abcd"}]
    files.write_jsonl(folder / "train.jsonl", ({"messages": chat} for _ in range(64)))


def command(*words: object, **environment: str) -> str:
    """Run Python with these arguments to its end; returns what it printed. Raises `CommandFailedError`."""
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=ROOT, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
    )  # fmt: skip
    print(done.stdout, flush=True)  # to the part's log
    if done.returncode:
        raise CommandFailedError(first_error(done.stdout) or f"exit code {done.returncode}")
    return done.stdout


def first_error(text: str) -> str | None:
    found = ERROR.search(text)
    return None if found is None else found[1].strip()


def settings(bench: Bench, kind: str, run: Path, keys: Keys) -> dict[str, str]:
    """Return the settings of a small run that trains `STEPS` steps and saves after two."""
    sizes: Keys = {"train.micro_tokens": 128, "train.global_batch_tokens": 256}
    if kind == "llm_sft":
        model = bench.folder / "smoke-chat"
    elif kind == "voice_clone":
        model = voice_base(bench)
    else:
        from workshop.benchmarks import _seeded_trials  # here, since the tests that it imports need packages that chat models do without

        model, tiny = bench.folder / f"smoke-{kind}", _seeded_trials.make_inputs(kind, bench.folder / f"smoke-{kind}")
        sizes = {key: tiny[key] for key in sizes}
    given = {
        "model.source": model / "base", "data.train": model / "train.jsonl", "run.dir": run, "train.steps": STEPS, "checkpoint.every": 2,
        "log.trackers": [], **sizes,
    }  # fmt: skip
    return {key: str(value) for key, value in {**given, **keys}.items()}


def train(launcher: Sequence[str], kind: str, run: Path, bench: Bench, keys: Keys) -> list[int]:
    """Launch a run to its end; returns the steps that this launch logged. Raises `CommandFailedError`."""
    log = run / "log.jsonl"
    before = len(steps_in(log))
    flags = [word for key, value in settings(bench, kind, run, keys).items() for word in (f"--{key}", value)]
    command(*launcher, "finetune/train.py", "--recipe", kind, *flags)
    return steps_in(log)[before:]


def steps_in(log: Path) -> list[int]:
    return [event["step"] for event in read_log(log) if event["event"] == "step"] if log.exists() else []


def trains(name: str, launcher: Sequence[str], kind: str, keys: Keys, bench: Bench) -> list[Cells]:
    steps = train(launcher, kind, bench.fresh(f"smoke {name}"), bench, keys)
    if steps != list(range(1, STEPS + 1)):
        raise CommandFailedError(f"it ended well, with steps {steps} in its log")
    return [[name, "passed"]]


def resumes(name: str, kind: str, bench: Bench) -> list[Cells]:
    """Trains, and trains further from the last checkpoint; a dry run does without the second launch."""
    run = bench.fresh(f"smoke {name}")
    steps = train(LAUNCH, kind, run, bench, {})
    further = [STEPS + 1, STEPS + 2] if not bench.dry else []
    if further:
        steps += train(LAUNCH, kind, run, bench, {"train.steps": STEPS + 2})
    if steps != [*range(1, STEPS + 1), *further]:
        raise CommandFailedError(f"it ended well, with steps {steps} in its logs")
    return [[name, "passed"]]


def resolves(name: str, kind: str, keys: Keys, bench: Bench) -> list[Cells]:
    """For a dry run: the keys exist and hold such values, and the model can be built with them."""
    given, recipe = settings(bench, kind, bench.folder / "run", keys), load_recipe(find_recipe(kind))
    config = resolve(kind, recipe.Options, [], list(given.items()))
    if "liger" not in keys.values():  # which needs a GPU to be built
        estimate_run(config, recipe)
    return [[name, "its config is valid"]]


def exports_and_answers(name: str, bench: Bench) -> list[Cells]:
    """A trained chat model's export answers at the command line and as a server."""
    run, to = bench.fresh(f"smoke {name}"), bench.fresh("smoke export")
    train(LAUNCH, "llm_sft", run, bench, {})
    command("-m", "finetune", "export", run, "--to", to)
    command("-m", "finetune", "generate", "--model", to, "--prompt", "sort dcba", "--max-new-tokens", 8)
    body = {"model": to.name, "messages": [{"role": "user", "content": "sort dcba"}], "max_tokens": 8}
    _, seconds = ask_a_server(to, "chat/completions", body)
    return [[name, f"passed; the server answered in {seconds:.1f} s"]]


def streams(name: str, bench: Bench) -> list[Cells]:
    out = bench.fresh("smoke speech").with_suffix(".wav")
    command("-m", "finetune", "generate", "--model", speaker(bench), "--text", TEXT, "--stream", "--out", out, "--max-seconds", 2)
    if out.stat().st_size < 1000:
        raise CommandFailedError(f"{out.stat().st_size} bytes of sound")
    out.unlink()
    return [[name, "passed"]]


def serves(name: str, bench: Bench) -> list[Cells]:
    body = {
        "model": "speaker-nano",
        "voice": "ann",
        "input": TEXT,
        "response_format": "flac",
    }  # random weights do not end: a stream would be broken off
    sound, seconds = ask_a_server(speaker(bench), "audio/speech", body, "--max-seconds", 2)
    return [[name, f"passed: {len(sound):,} bytes in {seconds:.1f} s"]]


def ask_a_server(model: Path, path: str, body: Mapping[str, object], *flags: object) -> tuple[bytes, float]:
    """The answer to one request of a server process, and how many seconds it took."""
    words = [sys.executable, "-m", "finetune", "serve", "--model", model, "--port", free_port(), *flags]
    server = subprocess.Popen([str(word) for word in words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    printed = ""
    try:
        assert server.stdout is not None
        for line in server.stdout:
            printed += line
            if address := re.search(r"(http\S+/v1)", line):
                headers = {"Content-Type": "application/json"}
                request = urllib.request.Request(f"{address[1]}/{path}", json.dumps(body).encode(), headers)
                began = time.monotonic()
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return answer.read(), time.monotonic() - began
        raise CommandFailedError(first_error(printed) or "it ended before it listened")
    finally:
        print(printed, flush=True)
        server.kill()
        server.wait()


def free_port() -> int:
    """Return a port that is free on this machine at this moment."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


def tests_pass(name: str, path: str, _: Bench) -> list[Cells]:
    for package in ("pytest", "hypothesis"):
        if find_spec(package) is None:
            raise CommandFailedError(f"{package} is not installed")
    printed = command("-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts=--import-mode=importlib", "-o", "timeout=0", path)
    return [[name, printed.strip().splitlines()[-1].strip("= ")]]


def checks() -> tuple[Figure, ...]:
    """In the order in which a user would meet them."""
    lora = {"model.lora.rank": 4}
    launched: list[tuple[str, str, Keys]] = [
        *((f"{strategy}, torchrun", "llm_sft", {"parallel.strategy": strategy}) for strategy in ("ddp", "zero1", "zero2", "fsdp")),
        ("offload, torchrun", "llm_sft", {"parallel.strategy": "fsdp", "parallel.offload": "true"}),
        ("a voice, fsdp, torchrun", "voice_clone", {"parallel.strategy": "fsdp"}),
        ("packing", "llm_sft", {"data.packing": "true"}),
        ("packing, sample by sample", "llm_sft", {"data.packing": "true", "options.attention": "varlen", "train.precision": "fp32"}),
        ("selective recomputation", "llm_sft", {"train.activation_checkpointing": "selective"}),
        ("LoRA", "llm_sft", lora),
        ("QLoRA", "llm_sft", {**lora, "model.quantization": "nf4"}),
        ("Liger's loss", "llm_sft", {"options.loss_head": "liger"}),
    ]
    compiled: list[tuple[str, str, Keys]] = [
        ("compile, padded", "llm_sft", {"train.compile": "true"}),
        ("compile, packed", "llm_sft", {"train.compile": "true", "data.packing": "true"}),
        ("compile, a voice", "voice_clone", {"train.compile": "true"}),
    ]
    found = [
        Figure(name := "chat: steps and a resume, accelerate launch", 30.0, partial(resumes, name, "llm_sft")),
        Figure(name := "voice: steps and a resume, accelerate launch", 35.0, partial(resumes, name, "voice_clone"), dry=False),
    ]
    sampling: Keys = {"sample.every": 2, "sample.prompts": '["sort dcba"]'}
    slow: list[tuple[str, str, Keys]] = [("answers during training", "llm_sft", sampling), *compiled]
    for seconds, several in ((13.0, launched), (30.0, slow)):
        for name, kind, keys in several:
            launcher = TORCHRUN if "torchrun" in name else LAUNCH
            found.append(Figure(name, seconds, partial(either, name, launcher, kind, keys)))
    others: list[tuple[str, float, Callable[..., list[Cells]], bool]] = [
        ("export and an answer", 30.0, exports_and_answers, False),
        ("speech, streamed", 15.0, streams, True),
        ("serve, one request", 20.0, serves, True),
    ]
    found += [Figure(name, seconds, partial(act, name), dry) for name, seconds, act, dry in others]
    return (*found, *(Figure(path, 10.0, partial(tests_pass, path, path), dry=False) for path in WITH_A_GPU))


def either(name: str, launcher: Sequence[str], kind: str, keys: Keys, bench: Bench) -> list[Cells]:
    """The run; in a dry run only the first under torchrun, and of the others their configs."""
    if bench.dry and name != "ddp, torchrun":
        return resolves(name, kind, keys, bench)
    return trains(name, launcher, kind, keys, bench)


NOTE = (
    f"Tiny models, {STEPS} steps each. What failed has the first line of its error, and stops nothing else; FOLDER/smoke.log of --work has "
    "the rest. QLoRA needs torch 2.12, and is refused on older ones."
)
COLUMNS = ("what", "how it went")
PART = Part((Table(COLUMNS, checks(), NOTE),), prepare=make_models, preparing=10.0)
