"""Loss, gradients and their norm under every strategy are those of one process in fp64, whatever they are combined with.

A covering array: few cases, in which every possible pair of settings appears, and a triple.
`pytest -s -m "" tests/launch/test_covering.py` prints the worst differences.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from overtone.finetune.config import resolve
from overtone.finetune.distributed import process_group
from overtone.finetune.recipe import Batch, Term, find_recipe, load_recipe
from overtone.recipes.voice_clone.model import tiny_checkpoint
from tests.causal_lm.recipe import write_base
from tests.launch import first_steps, reference
from tests.launch.forked_ranks import run_ranks
from tests.launch.launching import ROOT, launch, voice_rows

Case = dict[str, Any]

FACTORS: dict[str, tuple[Any, ...]] = {
    "strategy": ("ddp", "zero1", "zero2", "fsdp", "hsdp", "tensor"),
    "adaptation": ("full", "lora"),
    "micro_batches": ("one", "several"),
    "recompute": ("none", "selective", "full"),
    "precision": ("fp32", "bf16"),
    "world": (1, 2, 4),
    "model": ("llama", "qwen3", "voice"),
}
IMPOSSIBLE = {("hsdp", 1), ("tensor", 1), ("tensor", "voice")}
"""Two copies, and two halves, need two ranks; and there is no plan for the third model. The product refuses them (tests/finetune/)."""
LOSS = {"fp32": 1e-5, "bf16": 3e-3}
"""Largest relative difference."""
GRADIENT = {"fp32": 1e-5, "bf16": 5e-2}
"""Largest relative L2 distance of a tensor. Element by element means nothing in bf16."""
RECIPES = {"llama": str(ROOT / "tests" / "causal_lm"), "qwen3": str(ROOT / "tests" / "causal_lm"), "voice": "voice_clone"}
MICRO_TOKENS = {"causal": {"one": {1: 10**5, 2: 500, 4: 250}, "several": 100}, "voice": {"one": {1: 10**5, 2: 300, 4: 120}, "several": 70}}
"""A micro-batch a rank, or several; the test asserts which it was."""


TARGETS, TURNS = 376, 10
"""Of all rows together; of one process when it takes them as `several` micro-batches."""
TRIPLE = ("strategy", "micro_batches", "world")
"""Strategies differ in what ranks keep and send between micro-batches, so all three values of these appear together."""


def meetings(case: Case) -> set[Any]:
    """The pairs of settings that a case tries, and its triple."""
    return {*itertools.combinations(case.items(), 2), tuple((name, case[name]) for name in TRIPLE)}


def possible() -> list[Case]:
    every = (dict(zip(FACTORS, values, strict=True)) for values in itertools.product(*FACTORS.values()))
    return [case for case in every if not IMPOSSIBLE & {(case["strategy"], case["world"]), (case["strategy"], case["model"])}]


def covering_array() -> list[Case]:
    """Take the case with the most meetings that no case has yet, until none is left."""
    candidates = [(case, meetings(case)) for case in possible()]
    random.Random(0).shuffle(candidates)  # of equals the first is taken; in order that would nearly always be full, fp32 and llama
    left, chosen = set().union(*(of_case for _, of_case in candidates)), []
    while left:
        case, of_case = max(candidates, key=lambda candidate: len(candidate[1] & left))
        chosen.append(case)
        left -= of_case
    return chosen


def all_of_tensor() -> list[Case]:
    """Besides: the plans in fp32, whose tolerance is the narrow one, full and LoRA, on a group alone and on two that shard between them."""
    given = {"strategy": "tensor", "micro_batches": "several", "recompute": "none", "precision": "fp32"}
    varied = itertools.product((("full", 2), ("full", 4), ("lora", 4)), ("llama", "qwen3"))
    every = [given | {"adaptation": adaptation, "world": size, "model": model} for (adaptation, size), model in varied]
    return [{name: case[name] for name in FACTORS} for case in every]


COVERING = covering_array()
CASES = COVERING + [case for case in all_of_tensor() if case not in COVERING]


def test_every_pair_of_settings_appears() -> None:
    found = set().union(*map(meetings, COVERING))
    wanted = [*itertools.combinations(FACTORS, 2), TRIPLE]
    missing = {
        values
        for names in wanted
        for values in itertools.product(*(FACTORS[name] for name in names))
        if tuple(zip(names, values, strict=True)) not in found
    }
    alone = {(strategy, micro_batches, 1) for strategy in ("hsdp", "tensor") for micro_batches in FACTORS["micro_batches"]}
    assert missing == IMPOSSIBLE | alone
    assert len(set().union(*map(set, wanted))) == len(FACTORS) == 7
    assert 30 <= len(COVERING) <= 34 and len(CASES) <= len(COVERING) + 8 and len({name_of(case) for case in CASES}) == len(CASES)


def name_of(case: Case) -> str:
    return "-".join(str(value) for value in case.values())


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bases and ragged rows: folder/llama, folder/qwen3, folder/voice, each with base/ and train.jsonl."""
    folder = tmp_path_factory.mktemp("covering")
    for kind in ("llama", "qwen3"):
        write_base(folder / kind / "base", kind)  # type: ignore[arg-type]
        chance = random.Random(0)
        lengths = [chance.randint(6, 90) for _ in range(12)]
        rows = [{"text": "".join(chance.choices("abcdefgh ", k=length)), "given": chance.randint(0, length - 3)} for length in lengths]
        (folder / kind / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "voice").mkdir()
    tiny_checkpoint.build(folder / "voice" / "base")
    voice_rows(folder / "voice", ["Ann", "Bob", "Cid"], frames=(9, 40))
    return folder


def overrides(case: Case, sources: Path) -> dict[str, str]:
    halves = 2 if case["strategy"] == "tensor" else 1
    micro = MICRO_TOKENS["voice" if case["model"] == "voice" else "causal"][case["micro_batches"]]
    given = {
        "model.source": sources / case["model"] / "base",
        "data.train": sources / case["model"] / "train.jsonl",
        "run.dir": sources / "runs" / name_of(case),
        "log.trackers": "[]",
        "train.steps": 3,
        "train.lr": 1e-3,
        "train.schedule": "constant",
        "train.warmup": 0,
        "train.weight_decay": 0,
        "train.global_batch_tokens": 10**6,  # a step is the whole epoch
        "train.micro_tokens": micro if isinstance(micro, int) else micro[case["world"] // halves],
        "train.precision": case["precision"],
        "train.activation_checkpointing": case["recompute"],
        "parallel.strategy": "fsdp" if case["strategy"] == "tensor" else case["strategy"],
        "parallel.tensor": halves,
        "parallel.replicate": 2 if case["strategy"] == "hsdp" else 1,
        **({"model.lora.rank": 4} if case["adaptation"] == "lora" else {}),
    }
    return {key: str(value) for key, value in given.items()}


def differences(case: Case, sources: Path, tensors: dict[str, torch.Tensor], facts: dict[str, Any]) -> Iterator[tuple[float, str]]:
    """(difference as a share of what is tolerated, of what) of one case."""
    losses, gradients = expected(case, sources, {n.removeprefix("start."): value for n, value in tensors.items() if n.startswith("start.")})
    found = {name.removeprefix("gradient."): value for name, value in tensors.items() if name.startswith("gradient.")}
    assert found.keys() == gradients.keys() and len(found) > 10
    for step, (loss, right) in enumerate(zip(facts["losses"], losses, strict=True)):
        yield abs(loss / right - 1) / LOSS[case["precision"]], f"loss of step {step + 1}"
    norm = float(torch.stack([right.norm() for right in gradients.values()]).norm())
    yield abs(facts["norms"][0] / norm - 1) / GRADIENT[case["precision"]], "norm of step 1"
    for name, right in gradients.items():
        distance = float((found[name].double() - right).norm())
        yield distance / max(float(right.norm()), 1e-12) / GRADIENT[case["precision"]], f"gradient of {name}"


def expected(case: Case, sources: Path, adapters: dict[str, torch.Tensor]) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Once for each model and adaptation."""
    key = (case["model"], case["adaptation"], sources)
    if key not in EXPECTED:
        folder = find_recipe(RECIPES[case["model"]])
        recipe = load_recipe(folder)
        config = resolve(RECIPES[case["model"]], recipe.Options, [folder / "config.yaml"], overrides(case, sources).items())
        rows = [json.loads(line) for line in (sources / case["model"] / "train.jsonl").read_text().splitlines()]
        recipe.prepare(config)
        EXPECTED[key] = reference.first_steps(recipe, config, rows, adapters)
    return EXPECTED[key]


EXPECTED: dict[Any, Any] = {}


@pytest.mark.slow  # test_same_numbers.py has the quick cases
@pytest.mark.parametrize("size", [1, 2, 4])
def test_first_steps_match_one_process_in_fp64(sources: Path, size: int) -> None:
    cases, worst = [case for case in CASES if case["world"] == size], []
    assert len(cases) >= 5
    for case in cases:
        tensors, facts = launched(sources, size, name_of(case))
        assert facts["strategy"] == overrides(case, sources)["parallel.strategy"] and facts["ranks_agree"], case
        assert {turns > 1 for turns in facts["turns"]} == {case["micro_batches"] == "several"}, (case, facts["turns"])
        found = sorted(differences(case, sources, tensors, facts), reverse=True)
        for kind, tolerated in (("loss", LOSS), ("norm", GRADIENT), ("gradient", GRADIENT)):
            share, what = next(each for each in found if each[1].startswith(kind))
            worst.append((share, f"{share * tolerated[case['precision']]:.1e} {what}: {name_of(case)}"))
    print("\n".join(text for _, text in worst))
    assert [text for share, text in worst if not share <= 1] == []


def launched(sources: Path, size: int, name: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """What `first_steps` found for a case; all cases of a number of processes are run at once, when the first is requested."""
    folder = sources / f"world{size}"
    if not folder.is_dir():
        folder.mkdir()
        todo = [described(case, name_of(case), sources) for case in CASES if case["world"] == size]
        (folder / "cases.json").write_text(json.dumps(todo))
        launch("cpu", size, "tests/launch/first_steps.py", folder / "cases.json")
    return read_case(folder, name)


def described(case: Case, name: str, sources: Path) -> dict[str, Any]:
    """A case as `first_steps.py` reads it."""
    own = {**overrides(case, sources), "run.dir": str(sources / "runs" / name)}
    return {"name": name, "recipe": RECIPES[case["model"]], "overrides": own}


def read_case(folder: Path, name: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    return load_file(folder / f"{name}.safetensors"), json.loads((folder / f"{name}.json").read_text())


HALVED: Case = dict(zip(FACTORS, ("tensor", "full", "several", "none", "fp32", 2, "qwen3"), strict=True))


@pytest.mark.ci
@pytest.mark.slow
def test_a_plan_that_forgets_the_norms_of_heads_is_caught(sources: Path, tmp_path: Path) -> None:
    """Without an error each rank would train them on its own heads: the copies differ, and none is right."""
    assert HALVED in CASES
    forgetful = described(HALVED, "forgetful", sources) | {"left_out": ["self_attn.q_norm", "self_attn.k_norm"]}
    (tmp_path / "cases.json").write_text(json.dumps([forgetful]))
    run_ranks(first_steps.main, [(HALVED["world"], (tmp_path / "cases.json",))], [RECIPES[HALVED["model"]]], tmp_path / "witness")
    tensors, facts = read_case(tmp_path, "forgetful")
    found = {what: share for share, what in differences(HALVED, sources, tensors, facts)}
    wrong = sorted(what for what, share in found.items() if what.startswith("gradient") and share > 100)
    assert wrong == [f"gradient of model.layers.{layer}.self_attn.{norm}.weight" for layer in (0, 1) for norm in ("k_norm", "q_norm")]
    assert not facts["ranks_agree"]


@pytest.mark.parametrize("adaptation", ["full", pytest.param("lora", marks=pytest.mark.slow)])
def test_a_mean_of_means_is_caught(sources: Path, tmp_path: Path, adaptation: str) -> None:
    """The usual mistake, micro-batches divided by their own counts, is far beyond what is tolerated; the same case passes without it."""
    case = {
        **CASES[0],
        "strategy": "fsdp",
        "adaptation": adaptation,
        "micro_batches": "several",
        "precision": "fp32",
        "world": 1,
        "model": "llama",
    }
    recipe = load_recipe(find_recipe(RECIPES["llama"]))

    def of_means(model: nn.Module, batch: Batch) -> dict[str, Term]:
        share = counts["all"] / counts["turns"] / batch.targets["next"]
        return {name: Term(term.sum * share, term.weight) for name, term in recipe.loss(model, batch).items()}

    counts = {"all": TARGETS, "turns": TURNS}
    joined = process_group.join((), tmp_path)
    worst = {}
    for name, tried in (("right", recipe), ("wrong", dataclasses.replace(recipe, loss=of_means))):
        own = {**overrides(case, sources), "run.dir": str(tmp_path / name)}
        config = resolve(RECIPES["llama"], recipe.Options, [find_recipe(RECIPES["llama"]) / "config.yaml"], own.items())
        tensors, facts = first_steps.first_steps(config, tried, joined)
        assert set(facts["turns"]) == {counts["turns"]}
        worst[name] = {what.partition(" ")[0]: share for share, what in sorted(differences(case, sources, tensors, facts))}
    process_group.leave()
    assert max(worst["right"].values()) <= 1 and min(worst["wrong"].values()) > 100, worst
