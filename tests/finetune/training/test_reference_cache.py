"""Tests of `overtone.finetune.training.reference_cache`: predictions that are computed once are those that a step would compute."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.torch_version import TorchVersion
from transformers import AutoTokenizer

from overtone.finetune.config import Config, resolve
from overtone.finetune.data import batching
from overtone.finetune.data.batching import RankBatch
from overtone.finetune.data.cached_predictions import CacheKey
from overtone.finetune.data.cached_samples import RowPredictions, Rows, read_head
from overtone.finetune.distributed.process_group import World
from overtone.finetune.errors import UserError
from overtone.finetune.monitoring.run_records import read_log
from overtone.finetune.monitoring.stop_requests import StopRequests
from overtone.finetune.recipe import REFERENCE
from overtone.finetune.training import reference_cache, setup
from overtone.finetune.training.evaluation import evaluate
from overtone.finetune.training.run import train
from overtone.finetune.training.step import Training, make_loader
from overtone.recipes.llm_dpo.options import Options
from overtone.recipes.llm_dpo.recipe import RECIPE
from tests.finetune import tiny
from tests.recipes.llm_dpo.pairs_trained_plainly import LABELLED, ROWS
from tests.recipes.llm_sft import tiny_runs

KINDS: dict[str, dict[str, str]] = {
    "full": {},
    "lora": {"model.lora": "{rank: 4, alpha: 8, dropout: 0.5}", "train.lr": "0.05"},
    "kto": {"options.objective": "kto"},
    "padded": {"data.packing": "false"},
}
STEPS = 2
MANY = [{**row, "prompt": [{"role": "user", "content": f"Question {number}?"}]} for number, row in enumerate(ROWS * 3)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_runs.write_base(tmp_path_factory.mktemp("bases") / "base")


def config_of(base: Path, folder: Path, **changes: str) -> Config[Options]:
    name = "labels" if changes.get("options.objective") == "kto" else "pairs"
    data, val = folder / f"{name}.jsonl", folder / f"{name}_val.jsonl"
    for path, rows in ((data, LABELLED if name == "labels" else MANY), (val, LABELLED[::-1] if name == "labels" else MANY[:5])):
        if not path.exists():
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {
        **{"run.dir": folder / "run", "model.source": base, "data.train": data, "data.val": val, "train.steps": STEPS},
        **{"train.precision": "fp32", "train.micro_tokens": 90, "train.global_batch_tokens": 90, "log.trackers": "[]", "train.lr": "1e-2"},
        **{"data.packing": "true", "train.warmup": "0", "options.reference": "cached", "eval.every": "1", "eval.at_start": "true"},
        **changes,
    }
    return resolve("llm_dpo", Options, [], [(key, str(value)) for key, value in given.items()])


def build(world: World, config: Config[Options]) -> Training:
    tiny.let_go(config.run.dir)
    return setup.build(config, RECIPE, world)[0]


def list_numbers(world: World, config: Config[Options]) -> list[dict[str, Any]]:
    """Numbers of each step and evaluation of a run from its start to its end."""
    tiny.let_go(config.run.dir)
    train(world, config, RECIPE)
    left_out = ("time", "tokens_per_second", "memory_gib", "seconds")
    events = [event for event in read_log(config.run.dir / "log.jsonl") if event["event"] in ("step", "evaluation")]
    return [{name: value for name, value in event.items() if name not in left_out} for event in events]


def read_all(training: Training) -> list[tuple[Tensor, Tensor]]:
    found = [training.rows.predict(row) for row in range(len(training.rows))]
    return [(each.own, each.mismatched) for each in found if each is not None]


@pytest.mark.parametrize("kind", ["full", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("lora", "kto", "padded"))])
def test_a_run_has_the_same_numbers_as_with_the_live_reference(base: Path, tmp_path: Path, world: World, kind: str) -> None:
    """To the last bit: micro-batches of the first epoch are those in which the cache was computed."""
    runs = {}
    for name in ("live", "cached"):
        (tmp_path / name).mkdir()
        runs[name] = list_numbers(world, config_of(base, tmp_path / name, **{**KINDS[kind], "options.reference": name}))
    assert runs["live"] == runs["cached"] and len(runs["live"]) == 2 * STEPS + 1
    assert runs["live"][-1]["val/kl"] > 1e-6, "the model has moved"


def make_answer(prompt: str, answer: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}], [{"role": "assistant", "content": answer}]
    return {"prompt": messages[0], "completion": messages[1], "label": len(answer) > len(prompt)}


@pytest.mark.slow
def test_kto_of_several_files_has_the_numbers_of_a_live_reference_up_to_rounding(base: Path, tmp_path: Path, world: World) -> None:
    """The long answer after the long prompt is cut at the longest row of the short file, not of the mixture."""
    short = [make_answer("Yes or no?", "I am a machine. I am a machine."), make_answer("Is it cold? It is cold. Is it?", "No.")]
    long = [make_answer("Who are you?", "I am a machine. " * 4), make_answer("Good day. " * 4, "And to you.")]
    for name, rows in {"short": short, "long": long, "short_val": [*short, *LABELLED], "long_val": [*LABELLED, *long]}.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = {
        "data.train": "null",
        "data.mix": f"[{{path: {tmp_path}/short.jsonl, weight: 1}}, {{path: {tmp_path}/long.jsonl, weight: 1}}]",
        "data.val": f"[{tmp_path}/short_val.jsonl, {tmp_path}/long_val.jsonl]",
        "options.objective": "kto",
    }
    runs = []
    for name in ("live", "cached"):
        (tmp_path / name).mkdir()
        runs.append(list_numbers(world, config_of(base, tmp_path / name, **changes, **{"options.reference": name})))
    for one, other in zip(*runs, strict=True):
        numbers = [name for name, value in one.items() if isinstance(value, float)]
        assert one.keys() == other.keys() and any("mismatched_kl" in name for name in numbers)
        assert [one[name] for name in numbers] == pytest.approx([other[name] for name in numbers], rel=1e-4, abs=1e-6)
    assert len(runs[0]) == 2 * STEPS + 1 and abs(runs[0][-1]["val/mismatched_kl"]) > 1e-6, "the model has moved"


@pytest.mark.slow
def test_later_epochs_have_the_numbers_of_a_live_reference_up_to_rounding(base: Path, tmp_path: Path, world: World) -> None:
    """Their micro-batches have other rows, and a kernel may add in another order."""
    runs = []
    for name in ("live", "cached"):
        (tmp_path / name).mkdir()
        changes = {
            "options.reference": name,
            "data.packing": "false",
            "train.micro_tokens": "400",
            "train.global_batch_tokens": "200",
            "train.steps": "20",
        }
        runs.append(list_numbers(world, config_of(base, tmp_path / name, **changes, **{"eval.every": "20", "train.lr": "1e-3"})))
    steps = [[event for event in run if event["event"] == "step"] for run in runs]
    found = max(abs(other["grad_norm"] / one["grad_norm"] - 1) for one, other in zip(*steps, strict=True))
    assert len(steps[0]) == 20 and found < 1e-4, found


def test_the_cached_predictions_need_no_copy_and_are_named_at_the_start(base: Path, tmp_path: Path, world: World) -> None:
    training = build(world, config_of(base, tmp_path))
    path = next((tmp_path / "run" / "cache").glob("pairs-*.reference"))
    assert training.base is None and any("reference: cached, 0.0 MiB" in text and str(path) in text for text in training.loaded.remarks)
    loader = make_loader(training, training.rows)
    turn = loader.turns(next(batching.steps(training.order, training.rows.lengths, batching.Place(), None)).micros)[0]
    loader.close()
    assert turn.batch.tensors[REFERENCE].shape == (turn.batch.targets["kl"],)


def test_a_file_that_is_trained_and_evaluated_has_one_cache(
    base: Path, tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_of(base, tmp_path, **{"data.val": str(tmp_path / "pairs.jsonl")})
    build(world, config)
    assert capsys.readouterr().out.count("computing the reference") == 1
    training = build(world, config)
    assert "the reference" not in capsys.readouterr().out and len([*(tmp_path / "run" / "cache").glob("*.reference")]) == 1
    assert training.val is not None and training.val.predict(0) is not None


# ---- what is not used


def write_template(folder: Path, base: Path) -> Path:
    """The tokenizer's template with one more space before each answer."""
    text = str(AutoTokenizer.from_pretrained(base).chat_template)
    changed = text.replace("<|im_start|>assistant", "<|im_start|> assistant").replace("'<|im_start|>' +", "'<|im_start|> ' +")
    assert changed != text
    (folder / "other.jinja").write_text(changed)
    return folder / "other.jinja"


def change_base(folder: Path, base: Path) -> dict[str, str]:
    shutil.copytree(base, folder / "other")
    tensors = load_file(folder / "other" / "model.safetensors")
    save_file({name: tensor * 1.1 for name, tensor in tensors.items()}, folder / "other" / "model.safetensors", {"format": "pt"})
    return {"model.source": str(folder / "other")}


def change_data(folder: Path, _: Path) -> dict[str, str]:
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in MANY[::-1]))
    return {}


def pack(layers: str) -> dict[str, str]:
    """LoRA on four-bit weights of these layers."""
    return {"model.lora": f"{{rank: 4, alpha: 8, targets: '.*{layers}\\.mlp\\.down_proj'}}", "model.quantization": "nf4"}


CHANGES: dict[str, tuple[Callable[[Path, Path], dict[str, str]], str]] = {
    "template": (
        lambda folder, base: {"options.chat_template": str(write_template(folder, base))},
        "its rows have other tokens: the tokenizer",
    ),
    "base": (change_base, "it is of another base"),
    "data": (change_data, "it is of other data"),
    "batches": (lambda *_: {"train.micro_tokens": "89"}, "its rows were divided into other micro-batches"),
    "packed": (lambda *_: pack("1"), "it was computed with model.quantization: null"),
    "plain": (lambda *_: {"model.lora": pack("1")["model.lora"]}, "it was computed with model.quantization: nf4"),
    "targets": (lambda *_: pack("[01]"), "other layers of the base were packed to 4 bits"),
    "objective": (lambda *_: {"options.objective": "ipo"}, ""),
}

PACKED: dict[str, dict[str, str]] = {"packed": {}, "plain": pack("1"), "targets": pack("1")}
"""Cases with four-bit weights, and their settings before the change."""


@pytest.mark.parametrize("change", ["template", *(pytest.param(name, marks=pytest.mark.slow) for name in CHANGES if name != "template")])
def test_a_reference_of_another_template_base_or_data_is_not_used(
    base: Path, tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    if change in PACKED and TorchVersion(torch.__version__) < "2.12":
        pytest.skip("torch 2.11 is refused by quantization.check")
    before = read_all(build(world, config_of(base, tmp_path, **PACKED.get(change, {}))))
    capsys.readouterr()
    make, reason = CHANGES[change]
    changed = make(tmp_path, base)
    found = read_all(build(world, config_of(base, tmp_path, **changed)))
    printed = capsys.readouterr().out
    assert (reason in printed and "is not used" in printed) if reason else "computing the" not in printed
    (tmp_path / "fresh").mkdir()
    expected = read_all(build(world, config_of(base, tmp_path, **changed, **{"run.dir": str(tmp_path / "fresh")})))
    assert all(map(torch.equal, [own for own, _ in found], [own for own, _ in expected]))
    if change not in ("batches", "objective"):
        assert not all(map(equal, before, found)), "without a check, the loss would compare with these"


def test_a_reference_of_another_device_quantization_or_objective_is_refused_with_that_reason(
    base: Path, tmp_path: Path, world: World
) -> None:
    training = build(world, config_of(base, tmp_path, **{"data.val": "null"}))
    rows, reference = training.rows, training.recipe.reference
    assert isinstance(rows, Rows) and reference is not None and RECIPE.reference is not None
    stored = read_head(rows.samples.path.with_suffix(".reference"))[0]["key"]

    def find_difference(changed: Training) -> str | None:
        return reference_cache._make_key(changed, rows, stored["batches"]).find_difference(stored)

    assert find_difference(training) is None
    other = replace(training, world=replace(world, device=torch.device("cuda")))
    assert find_difference(other) == "it was computed on another type of device: cpu"
    config = training.config
    quantized = config.model_copy(update={"model": config.model.model_copy(update={"quantization": "nf4"})})
    assert find_difference(replace(training, config=quantized)) == "it was computed with model.quantization: null"
    with_others = replace(reference, divergence=RECIPE.reference.divergence)
    other = replace(training, recipe=replace(training.recipe, reference=with_others))
    assert find_difference(other) == "it was computed for the answers of each row alone"


def equal(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> bool:
    return one[0].shape == other[0].shape and torch.allclose(one[0], other[0], rtol=1e-6)


def test_the_reference_of_another_template_would_change_the_loss(
    base: Path, tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The injected fault: a cache that is used whatever its key is."""
    template = {"options.chat_template": str(write_template(tmp_path, base))}
    build(world, config_of(base, tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(CacheKey, "find_difference", lambda *_: None)
        wrong = build(world, config_of(base, tmp_path, **template))
    right = build(world, config_of(base, tmp_path, **template))
    with StopRequests() as requests:
        found = [evaluate(each, each.rows, requests) for each in (wrong, right)]
    assert found[0] is not None and found[1] is not None
    assert found[1]["kl"] < 1e-9 and found[0]["kl"] > 1e-4, "before the first update, the model is its base"


@pytest.mark.parametrize("damage", ["flipped", *(pytest.param(name, marks=pytest.mark.slow) for name in ("short", "index", "header"))])
def test_a_damaged_cache_is_computed_again(
    base: Path, tmp_path: Path, world: World, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    before = read_all(build(world, config_of(base, tmp_path)))
    path = next((tmp_path / "run" / "cache").glob("pairs-*.reference"))
    content = bytearray(path.read_bytes())
    if damage == "short":
        content = content[:-4]
    elif damage == "header":
        content = content[5:]
    else:
        content[-1 if damage == "flipped" else content.index(b"\n") + 3] ^= 1
    path.write_bytes(content)
    found = read_all(build(world, config_of(base, tmp_path)))
    printed = capsys.readouterr().out
    assert f"the cached reference {path} is not used: " in printed and "computing it again" in printed
    assert all(map(torch.equal, [own for own, _ in before], [own for own, _ in found]))


def test_a_killed_computation_resumes_after_its_parts(
    base: Path, tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reference_cache, "PART", 1)
    right, computed = reference_cache._predict, list[int]()

    def count(training: Training, turn: RankBatch) -> Iterator[RowPredictions]:
        computed.extend(turn.micro.ids)
        if len(computed) > limit:
            raise KeyboardInterrupt
        yield from right(training, turn)

    monkeypatch.setattr(reference_cache, "_predict", count)
    limit = 4
    with pytest.raises(KeyboardInterrupt):
        build(world, config_of(base, tmp_path, **{"data.val": "null"}))
    parts = next((tmp_path / "run" / "cache").glob("*.parts"))
    assert [*parts.iterdir()] and not [*(tmp_path / "run" / "cache").glob("*.reference")]
    damaged = sorted(parts.iterdir())[0]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    limit, kept = 10**6, len(computed) - 1
    computed.clear()
    found = read_all(build(world, config_of(base, tmp_path, **{"data.val": "null"})))
    assert len(MANY) - kept <= len(computed) < len(MANY) and "rows were computed before" in capsys.readouterr().out
    assert not parts.exists() and len(found) == len(MANY)
    (tmp_path / "whole").mkdir()
    expected = read_all(build(world, config_of(base, tmp_path, **{"data.val": "null", "run.dir": str(tmp_path / "whole")})))
    assert all(map(torch.equal, [own for own, _ in found], [own for own, _ in expected]))


@pytest.mark.parametrize("ending", [".reference", ".parts"])
def test_nothing_is_written_through_a_link(base: Path, tmp_path: Path, world: World, ending: str) -> None:
    build(world, config_of(base, tmp_path, **{"options.reference": "live"}))
    samples = next((tmp_path / "run" / "cache").glob("pairs-*.samples"))
    victim = tmp_path / "victim"
    (victim / "00000000").mkdir(parents=True) if ending == ".parts" else victim.write_text("mine")
    samples.with_suffix(ending).symlink_to(victim)
    if ending == ".parts":
        with pytest.raises(UserError, match="link"):
            build(world, config_of(base, tmp_path))
        assert [path.name for path in victim.iterdir()] == ["00000000"]
    else:
        build(world, config_of(base, tmp_path))
        assert victim.read_text() == "mine" and not samples.with_suffix(ending).is_symlink()


def test_a_recipe_that_augments_has_no_cached_reference(base: Path, tmp_path: Path, world: World) -> None:
    training = build(world, config_of(base, tmp_path))
    recipe = replace(training.recipe, augment=lambda sample, *_: sample)
    with pytest.raises(UserError, match="the recipe augments its samples"):
        reference_cache.cache_reference(replace(training, recipe=recipe))
