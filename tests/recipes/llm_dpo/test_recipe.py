"""Tests that llm_dpo trains as plain transformers does row by row, in fp64, and that each injected fault is detected."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.qwen3 import modeling_qwen3

from overtone.finetune.config import Config, resolve
from overtone.finetune.data.batching import Loader
from overtone.finetune.distributed.process_group import World, join, leave
from overtone.finetune.errors import UserError
from overtone.finetune.modeling import base_kl_loss
from overtone.finetune.planning.meta_device_estimate import estimate_run
from overtone.finetune.recipe import Batch, Sample
from overtone.finetune.training import setup
from overtone.recipes.language import collation
from overtone.recipes.language.modeling import varlen_attention
from overtone.recipes.language.preferences import preference_tokenization
from overtone.recipes.llm_dpo import answer_batches, recipe
from overtone.recipes.llm_dpo.options import Options
from overtone.recipes.llm_dpo.recipe import RECIPE
from overtone.recipes.preferences import batch_targets, preference_terms
from tests.finetune import tiny
from tests.recipes.llm_dpo.pairs_trained_plainly import (
    LABELLED,
    ROWS,
    UPDATES,
    largest_difference,
    normalize,
    processor_of,
    score_plainly,
    train_by_recipe,
)
from tests.recipes.llm_sft import tiny_runs

OBJECTIVES: dict[str, dict[str, Any]] = {
    "dpo": {},
    "conservative dpo": {"label_smoothing": 0.1},
    "length-normalized dpo": {"length_normalized": True, "beta": 1.0},
    "ipo": {"objective": "ipo", "beta": 0.5},
    "kto": {"objective": "kto", "desirable_weight": 1.3},
    "orpo": {"objective": "orpo"},
    "simpo": {"objective": "simpo"},
}


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny Qwen3, whose norms compute in fp64 in an fp64 model; those of transformers round to fp32."""

    monkeypatch.setattr(modeling_qwen3.Qwen3RMSNorm, "forward", normalize)
    varlen_attention.register()
    return tiny_runs.write_base(tmp_path / "base")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    joined = join((), tmp_path)
    yield joined
    leave()


@pytest.mark.parametrize("given", OBJECTIVES.values(), ids=[*OBJECTIVES])
def test_training_is_that_of_plain_transformers(base: Path, given: dict[str, Any]) -> None:
    updates = UPDATES if not given else 3
    assert largest_difference(base, Options(**given), updates) < 1e-9


@pytest.mark.parametrize("objective", ["dpo", "kto"])
def test_training_of_adapters_is_that_of_peft(base: Path, objective: Any) -> None:
    """The reference is the model with its adapters switched off."""
    assert largest_difference(base, Options(objective=objective), UPDATES, lora=True) < 1e-9


@pytest.mark.parametrize("objective", ["dpo", "kto"])
def test_padded_batches_give_the_same_training(base: Path, objective: Any) -> None:
    assert largest_difference(base, Options(objective=objective), 3, packing=False) < 1e-9


def test_the_divergence_of_kto_depends_on_the_step_and_not_on_its_micro_batches(base: Path) -> None:
    cuts = [((0, 1, 2, 3),), ((0, 1), (2, 3)), ((3,), (1,), (0,), (2,))]
    runs = [list(train_by_recipe(base, Options(objective="kto"), 3, cut=cut)) for cut in cuts]
    for run in runs[1:]:
        assert [number for step in run for number in step] == pytest.approx([number for step in runs[0] for number in step], rel=1e-12)


def swap_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    right = answer_batches.split_sample
    monkeypatch.setattr(answer_batches, "split_sample", lambda sample: right(sample)[::-1])


def average_instead_of_summing(monkeypatch: pytest.MonkeyPatch) -> None:
    right = preference_terms.Scores
    monkeypatch.setattr(preference_terms, "Scores", lambda model, base, tokens: right(model / tokens, base / tokens, tokens))


def count_the_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    right = preference_tokenization.tokenize_row
    monkeypatch.setattr(
        preference_tokenization, "tokenize_row", lambda row, tokenizer, _, dropped: right(row, tokenizer, "everything", dropped)
    )


def shift_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    right = answer_batches.split_sample
    monkeypatch.setattr(
        answer_batches, "split_sample", lambda sample: [{**each, "supervised": each["supervised"].roll(1)} for each in right(sample)]
    )


def count_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    right = batch_targets.pad_sequence
    monkeypatch.setattr(batch_targets, "pad_sequence", lambda places, batch_first, padding_value: right(places, batch_first=batch_first))


def use_the_trained_model_as_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_kl_loss, "predict_with_base", lambda predict, model, base, batch: predict(model, batch).detach())


def let_sides_see_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    right = collation.pack

    def joined(samples: list[Sample]) -> Batch:
        batch = right(samples)
        whole = torch.tensor([0, batch.tensors["ids"].shape[1]], dtype=torch.int32)
        return Batch({**batch.tensors, "bounds": whole}, batch.targets, (int(whole[1]),))

    monkeypatch.setattr(collation, "pack", joined)


FAULTS: list[Callable[[pytest.MonkeyPatch], None]] = [
    *(swap_sides, average_instead_of_summing, count_the_prompt, shift_the_mask, count_padding, use_the_trained_model_as_reference),
    let_sides_see_each_other,
]


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.__name__ for fault in FAULTS])
def test_each_fault_is_detected(base: Path, monkeypatch: pytest.MonkeyPatch, fault: Callable[[pytest.MonkeyPatch], None]) -> None:
    """The first update alone would hide some: there, model and base are equal."""
    fault(monkeypatch)
    assert largest_difference(base, Options(), 3) > 1e-3


# ---- through the engine


def config_of(base: Path, folder: Path, *overrides: tuple[str, str]) -> Config[Options]:
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    given = {
        **{"run.dir": folder / "run", "model.source": base, "data.train": folder / "pairs.jsonl", "train.steps": 4},
        **{
            "train.precision": "fp32",
            "train.micro_tokens": 90,
            "train.global_batch_tokens": 90,
            "log.trackers": "[]",
            "data.packing": "true",
        },
        **dict(overrides),
    }
    return resolve("llm_dpo", Options, [], [(key, str(value)) for key, value in given.items()])


@pytest.mark.parametrize("in_train_mode", [False, True])
def test_the_reference_of_adapters_is_the_base_without_dropout(
    base: Path, tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, in_train_mode: bool
) -> None:
    adapters = ("model.lora", "{rank: 4, alpha: 8, dropout: 0.5}")
    tiny.let_go(tmp_path / "run")
    training, _ = setup.build(config_of(base, tmp_path, adapters, ("train.lr", "0.05")), RECIPE, world)
    assert training.base is None
    loader = Loader(training.rows, training.recipe, 0, 1)
    batch = answer_batches.pack([loader.sample(row) for row in range(len(ROWS))])
    loader.close()
    model: Any = training.model
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    seen: list[Tensor] = []
    right = preference_terms.Scores
    monkeypatch.setattr(
        preference_terms, "Scores", lambda own, reference, tokens: (seen.append(reference), right(own, reference, tokens))[1]
    )
    if in_train_mode:
        monkeypatch.setattr(type(model), "eval", lambda self: self)
        monkeypatch.setattr(base_kl_loss, "switch_off_adapters", lambda _: torch.no_grad())
    training.recipe.loss(model, batch)
    plain = AutoModelForCausalLM.from_pretrained(base)
    with torch.no_grad():
        expected = torch.tensor(
            [[float(score_plainly(plain, row["prompt"], row[side])[0]) for side in ("chosen", "rejected")] for row in ROWS]
        )
    equal = torch.allclose(seen[0], expected, rtol=1e-4)
    assert equal != in_train_mode and model.training


def test_a_full_run_has_a_frozen_copy_and_plan_names_the_reference(base: Path, tmp_path: Path, world: World) -> None:
    tiny.let_go(tmp_path / "run")
    config = config_of(base, tmp_path)
    training, _ = setup.build(config, RECIPE, world)
    cached = (("options.reference", "cached"),)
    assert training.base is not None and not any(parameter.requires_grad for parameter in training.base.parameters())
    estimates = {name: estimate_run(config_of(base, tmp_path, *own), RECIPE) for name, own in (
        ("full", ()), ("lora", (("model.lora", "true"),)), ("simpo", (("options.objective", "simpo"),)),
        ("cached", cached), ("kto", (("options.objective", "kto"), *cached)),
    )}  # fmt: skip
    assert [name for name, estimate in estimates.items() if estimate.outline.with_base] == ["full"]
    for name, said in (
        ("full", "frozen copy of the base"),
        ("lora", "adapters switched off"),
        ("simpo", "reference: none (simpo"),
        ("cached", "kept in cache/ of the run's folder, 4 bytes for each token of an answer; no memory in a step"),
        ("kto", "4 bytes for each token of an answer, twice"),
    ):
        assert any(said in remark for remark in estimates[name].remarks)
        assert estimates[name].activations(90, "none", 1).peak > 0


def test_both_sides_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    shown = recipe.render_sample(RECIPE.read(ROWS[0], processor_of(Options()), Path()), processor_of(Options()))
    assert "chosen:\n" in shown and "⟦And to you.<|im_end|>⟧" in shown and "rejected:\n" in shown and "⟦No.<|im_end|>⟧" in shown


def test_a_labelled_answer_is_shown_with_its_label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    processor = processor_of(Options(objective="kto"))
    shown = recipe.render_sample(RECIPE.read(LABELLED[1], processor, Path()), processor)
    assert shown.startswith("undesirable:\n") and "⟦I am a machine. I am a machine.<|im_end|>⟧" in shown


def test_keys_of_a_row_that_the_objective_does_not_read_are_counted() -> None:
    assert RECIPE.list_unused({**ROWS[0], "margin": 2, "label": True}, processor_of(Options())) == ["key margin", "key label"]
    assert RECIPE.list_unused({**LABELLED[1], "margin": 2}, processor_of(Options(objective="kto"))) == ["key margin"]


def test_plan_says_what_kto_takes(base: Path, tmp_path: Path) -> None:
    estimate = estimate_run(config_of(base, tmp_path, ("options.objective", "kto"), ("model.lora", "true")), RECIPE)
    assert any("adapters switched off, two more forward passes for each batch" in remark for remark in estimate.remarks)
    assert estimate.activations(90, "none", 1).peak > 0


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ((True, True), "have the label true, so the model learns only what to prefer; add answers with the label false"),
        ((False, False), "have the label false, so the model learns only what to avoid; add answers with the label true"),
        ((True, False), None),
        (("yes", 1), None),
    ],
)
def test_answers_with_one_label_only_are_warned_of(
    base: Path, tmp_path: Path, world: World, labels: tuple[object, ...], said: str | None
) -> None:
    rows = [{**row, "label": label} for row, label in zip(LABELLED, labels, strict=False)]
    (tmp_path / "labels.jsonl").write_text("".join(json.dumps(row) + "\n\n" for row in rows))
    config = config_of(base, tmp_path, ("options.objective", "kto"), ("data.train", str(tmp_path / "labels.jsonl")))
    planned = [remark for remark in estimate_run(config, RECIPE).remarks if remark.startswith("warning")]
    assert planned == [remark for remark in RECIPE.load(config).remarks if remark.startswith("warning")]
    assert len(planned) == (said is not None) and (
        said is None or f"all answers of {config.data.name_training_data()} {said}" in planned[0]
    )


def test_validation_rows_of_one_prompt_are_refused_before_the_first_step(base: Path, tmp_path: Path, world: World) -> None:
    tiny.let_go(tmp_path / "run")
    for name, rows in (("labels", LABELLED), ("val", LABELLED[:1])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = (("data.train", str(tmp_path / "labels.jsonl")), ("data.val", str(tmp_path / "val.jsonl")))
    with pytest.raises(UserError, match=r"val\.jsonl:1: all rows of its file have the same prompt"):
        setup.build(config_of(base, tmp_path, ("options.objective", "kto"), *data), RECIPE, world)
