"""One optimizer step follows the plain formula, however the samples are divided."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from overtone.finetune.data import batching
from overtone.finetune.data.batching import Loader, Place
from overtone.finetune.distributed import sharding
from overtone.finetune.distributed.process_group import World
from overtone.finetune.distributed.sharding import plain_name
from overtone.finetune.errors import UserError
from overtone.finetune.modeling import optimizers
from overtone.finetune.monitoring.loss_spikes import NotFiniteError
from overtone.finetune.recipe import DIVERGENCE, Batch, Divergence, Reference, Term
from overtone.finetune.training.loop import steps_left
from overtone.finetune.training.step import (
    Training,
    accumulate,
    add_divergence,
    check_terms,
    compute_means,
    compute_objective,
    estimate_divergence,
    global_counts,
    make_loader,
    memory_gib,
    seed_generators,
    train_step,
)
from tests.finetune import tiny
from tests.finetune.plain import plain_loss, reference
from tests.finetune.synchronizations import report, synchronizations, waits_of_steps


def first_step(training: Training) -> tuple[list[batching.RankBatch], list[str]]:
    order = training.order
    step = next(batching.steps(order, training.rows.lengths, Place(), None))
    loader = Loader(training.rows, training.recipe, 0, 1)
    turns = loader.turns(step.micros)
    texts = [bytes(loader.sample(row)["ids"].tolist()).decode() for micro in step.micros for row in micro.ids]
    loader.close()
    return turns, texts


def keep_gradients(training: Training, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """What the gradients are when they are clipped."""
    kept: dict[str, Tensor] = {}
    clip = sharding.clip_gradients

    def keep(gradients: dict[sharding.TensorLayout, list[Tensor]], norm: float, largest: float) -> None:
        kept.update({plain_name(n): p.grad.full_tensor().clone() for n, p in training.model.named_parameters() if p.grad is not None})
        clip(gradients, norm, largest)

    monkeypatch.setattr(sharding, "clip_gradients", keep)
    return kept


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_the_gradient_is_that_of_the_plain_formula(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch, strategy: str, checkpointing: str
) -> None:
    settings = (("options.dropout", "0"), ("parallel.strategy", strategy), ("train.activation_checkpointing", checkpointing))
    training, _ = tiny.built(world, tiny.config_in(tmp_path, *settings))
    model = reference(training)
    turns, rows = first_step(training)
    assert len(turns) >= 3 and len({len(row) for row in rows}) >= 5, "several ragged micro-batches"
    loss = plain_loss(model, rows)
    loss.backward()
    gradients = keep_gradients(training, monkeypatch)
    numbers = train_step(training, turns, 0)
    assert len(gradients) == 17
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert float((gradients[name] - parameter.grad).norm() / parameter.grad.norm()) <= 1e-5, name
    assert numbers["loss"] == pytest.approx(float(loss.detach()), rel=1e-6)
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None))
    assert numbers["grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert numbers["tokens"] == sum(len(row) for row in rows)


def test_the_cut_into_micro_batches_changes_nothing(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for number, micro_tokens in enumerate((50, 10000)):
        folder = tmp_path / str(number)
        settings = (("options.dropout", "0"), ("train.micro_tokens", str(micro_tokens)), ("train.global_batch_tokens", "10000"))
        training, _ = tiny.built(world, tiny.config_in(folder, *settings))
        turns, rows = first_step(training)
        gradients = keep_gradients(training, monkeypatch)
        found.append((len(turns), sorted(rows), train_step(training, turns, 0)["loss"], gradients))
        monkeypatch.undo()
    (many, rows, loss, gradients), (one, same_rows, same_loss, same_gradients) = found
    assert many > 5 and one == 1 and rows == same_rows and loss == pytest.approx(same_loss, rel=1e-6)
    assert all(float((gradients[name] - same_gradients[name]).norm() / same_gradients[name].norm()) < 1e-5 for name in gradients)


def test_a_mean_of_means_would_be_another_number(tmp_path: Path, world: World) -> None:
    """The fault that this loss avoids would be seen by the test above it: on these batches it is far outside the tolerance."""
    training, _ = tiny.built(world, tiny.config_in(tmp_path, ("options.dropout", "0")))
    model = reference(training)
    turns, rows = first_step(training)
    left = iter(rows)
    texts = [[next(left) for _ in turn.micro.ids] for turn in turns]
    of_means = sum(float(plain_loss(model, micro).detach()) for micro in texts) / len(texts)
    assert abs(of_means / float(plain_loss(model, rows).detach()) - 1) > 1e-4


def test_objective_divides_each_term_by_its_own_count() -> None:
    terms = {
        "a": Term(torch.tensor(6.0, requires_grad=True), 1.0),
        "b": Term(torch.tensor(4.0), 0.5),
        "metric": Term(torch.tensor(9.0), 0.0),
    }
    assert float(compute_objective(terms, {"a": 3.0, "b": 8.0, "metric": 1.0}).detach()) == 6 / 3 + 0.5 * 4 / 8
    nothing = {"a": Term(torch.zeros((), requires_grad=True), 1.0)}
    loss = compute_objective(nothing, {"a": 0.0})
    loss.backward()
    assert float(loss.detach()) == 0.0, "a step without targets still runs backward, because other ranks do"


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"eror": Term(torch.ones(()), 1.0)}, "loss returned eror, but its batch counts the targets of error"),
        ({"error": Term(torch.ones(3), 1.0)}, r"returned error with shape \[3\]; Term.sum must be the sum"),
    ],
)
def test_terms_that_do_not_fit_their_batch_are_named(terms: dict[str, Term], message: str) -> None:
    check_terms({"error": Term(torch.ones(()), 1.0)}, {"error": 3})
    with pytest.raises(UserError, match=message):
        check_terms(terms, {"error": 3})


def test_means_weigh_the_terms() -> None:
    numbers = compute_means({"a": 6.0, "b": 4.0, "metric": 9.0}, {"a": 3.0, "b": 8.0, "metric": 2.0}, {"a": 1.0, "b": 0.5, "metric": 0.0})
    assert numbers == {"loss": 2.25, "a": 2.0, "b": 0.5, "metric": 4.5}
    assert compute_means({"a": 0.0}, {"a": 0.0}, {"a": 1.0})["loss"] == 0.0


def test_dropout_depends_on_the_micro_batch_alone(tmp_path: Path, world: World) -> None:
    training, _ = tiny.built(world, tiny.config_in(tmp_path, ("options.dropout", "0.5"), ("train.lr", "1e-12")))
    turns, _ = first_step(training)
    losses = []
    for number in (1, 2):
        torch.manual_seed(number)
        losses.append(train_step(training, turns, 0)["next"])
    other = [replace(turn, micro=replace(turn.micro, key=turn.micro.key + 1)) for turn in turns]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert abs(train_step(training, other, 0)["next"] / losses[0] - 1) > 1e-4


def test_a_seed_gives_the_numbers_of_torch() -> None:
    torch.manual_seed(2**62 + 7)
    right = torch.rand(3)
    seed_generators(2**62 + 7, torch.device("cpu"))
    assert torch.equal(torch.rand(3), right)


def test_fillers_do_not_count(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for number in range(2):
        training, _ = tiny.built(world, tiny.config_in(tmp_path / str(number), ("options.dropout", "0")))
        turns, _ = first_step(training)
        filler = replace(turns[0], counts=False)
        gradients = keep_gradients(training, monkeypatch)
        numbers = train_step(training, [*turns, filler] if number else turns, 0)
        monkeypatch.undo()
        found.append(({name: numbers[name] for name in ("loss", "next", "tokens", "grad_norm")}, gradients))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    assert all(torch.allclose(found[0][1][name], found[1][1][name], rtol=1e-6, atol=1e-9) for name in found[0][1])


def test_an_update_is_adamw_at_the_rate_of_its_step(tmp_path: Path, world: World) -> None:
    settings = (("train.steps", "3"), ("options.dropout", "0"), ("train.clip", "0.05"), ("train.warmup", "0.5"))
    config = tiny.config_in(tmp_path, *settings)
    training, _ = tiny.built(world, config)
    model = reference(training)
    groups = [
        {"params": group["of"], "weight_decay": group["weight_decay"]}
        for group in optimizers.make_optimizer(model, config.train).param_groups
    ]
    optimizer = torch.optim.AdamW(groups, betas=(config.train.beta1, config.train.beta2))
    for step in range(3):
        turns, rows = first_step(training)
        plain_loss(model, rows).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        for group in optimizer.param_groups:
            group["lr"] = optimizers.learning_rate(step, 3, config.train)
        optimizer.step()
        optimizer.zero_grad()
        assert train_step(training, turns, step)["lr"] == optimizers.learning_rate(step, 3, config.train)
    expected = model.state_dict()
    for name, parameter in training.model.named_parameters():
        torch.testing.assert_close(parameter.full_tensor().double(), expected[plain_name(name)], rtol=1e-3, atol=2e-4)


def test_a_nan_stops_before_the_update(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    training, _ = tiny.built(world, tiny.config_in(tmp_path))
    turns, _ = first_step(training)
    before = {name: parameter.full_tensor().clone() for name, parameter in training.model.named_parameters()}

    def poisoned(model: torch.nn.Module, batch: Batch) -> dict[str, Term]:
        return {name: Term(term.sum * math.nan, term.weight) for name, term in tiny.RECIPE.loss(model, batch).items()}

    sick = replace(training, recipe=replace(training.recipe, loss=poisoned))
    with pytest.raises(NotFiniteError, match=r"step 1: loss nan, gradient norm nan; .*train\.jsonl:\d+"):
        train_step(sick, turns, 0)
    assert all(torch.equal(before[name], p.full_tensor()) for name, p in training.model.named_parameters())
    assert not training.optimizer.state


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_step_waits_for_the_device_once(tmp_path: Path, world: World, strategy: str) -> None:
    training, _ = tiny.built(world, tiny.config_in(tmp_path, ("parallel.strategy", strategy), ("train.micro_tokens", "50")))
    for found in waits_of_steps(training, 2):
        assert [each.place.partition(":")[0] for each in found] == ["overtone/finetune/training/step.py"], report(found)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_batches_for_a_gpu_alone_are_pinned(tmp_path: Path, world: World, device: str) -> None:
    training, progress = tiny.built(world, tiny.config_in(tmp_path))
    step = next(steps_left(training, progress))
    with synchronizations(world.device):  # which knows of pinned memory without a GPU
        loader = make_loader(replace(training, world=replace(world, device=torch.device(device))), training.rows)
        found = {tensor.is_pinned() for turn in loader.turns(step.micros) for tensor in turn.batch.tensors.values()}
    loader.close()
    assert found == {device == "cuda"}


def test_parameters_that_the_loss_does_not_reach_are_reported_before_the_first_update(tmp_path: Path, world: World) -> None:
    def careless(model: torch.nn.Module, batch: Batch) -> dict[str, Term]:
        terms = tiny.RECIPE.loss(model, batch)
        return {**terms, "after_next": Term(terms["after_next"].sum.detach(), 0.0)}

    training, _ = tiny.built(world, tiny.config_in(tmp_path))
    turns, _ = first_step(training)
    with pytest.raises(UserError, match=r"the loss does not depend on after_next\.weight, after_next\.bias \(2 in total\)"):
        train_step(replace(training, recipe=replace(training.recipe, loss=careless)), turns, 0)
    assert not training.optimizer.state


def test_memory_is_that_of_this_process() -> None:
    assert 0.05 < memory_gib(torch.device("cpu")) < 64


def test_the_backward_pass_multiplies_the_loss_by_the_number_of_data_parallel_ranks(tmp_path: Path, world: World) -> None:
    """Gradients are averaged over the data-parallel ranks; tensor-parallel ranks share the same data."""
    training, _ = tiny.built(world, tiny.config_in(tmp_path, ("options.dropout", "0"), ("parallel.strategy", "fsdp")))
    turns, _ = first_step(training)
    counts = global_counts(world, turns)
    norms = []
    for size, tensor in ((1, 1), (4, 2)):
        accumulate(replace(training, world=replace(world, size=size, tensor=tensor)), turns, counts)
        gradients = sharding.group_by_layout(p.grad for p in training.model.parameters() if p.grad is not None)
        norms.append(float(sharding.gradient_norm(gradients)))
        training.model.zero_grad(set_to_none=True)
    assert norms[1] == pytest.approx(2 * norms[0], rel=1e-6)


@pytest.mark.parametrize("problem", ["nan", "spike"])
def test_gradients_of_an_update_that_is_not_applied_are_dropped(tmp_path: Path, world: World, problem: str) -> None:
    training, _ = tiny.built(world, tiny.config_in(tmp_path, ("train.spike", "2")))
    turns, _ = first_step(training)

    def poison(model: torch.nn.Module, batch: Batch) -> dict[str, Term]:
        return {name: Term(term.sum * math.nan, term.weight) for name, term in tiny.RECIPE.loss(model, batch).items()}

    chosen = replace(training, recipe=replace(training.recipe, loss=poison)) if problem == "nan" else training
    with pytest.raises(NotFiniteError):
        train_step(chosen, turns, 0, recent=((1e-3, 1e-3),) * 20)
    assert all(parameter.grad is None for parameter in training.model.parameters())


def test_the_divergence_is_a_mean_over_all_samples_of_a_step(tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    training, _ = tiny.built(world, tiny.config_in(tmp_path))
    scale = torch.nn.Parameter(torch.tensor(3.0))
    model, base = (torch.nn.ParameterList([each]) for each in (scale, torch.ones(())))
    divergence = Divergence(needed=lambda _: True, mismatch=lambda own, _, __: own)
    reference = Reference(predict=lambda model, batch: model[0] * batch.tensors["scores"], needed=lambda _: True, divergence=divergence)
    recipe = replace(training.recipe, reference=reference)
    training = replace(training, recipe=recipe, model=model, base=base)
    batches = [[Batch({"scores": torch.tensor(values)}, {}) for values in each] for each in ([[1.0], [2.0]], [[4.0]], [[100.0]])]
    micros = [batching.MicroBatch(ids, 0, 0) for ids in ((0, 1), (2,), (3,))]
    turns = [
        batching.RankBatch(micro, Batch({}, {}), counts, tuple(mismatched))
        for micro, mismatched, counts in zip(micros, batches, (True, True, False), strict=True)
    ]
    found = estimate_divergence(training, [turns[:1], turns[1:]])
    assert found == pytest.approx((3 - 1) * (1 + 2 + 4) / 3)
    assert [float(turn.batch.tensors[DIVERGENCE]) for turn in add_divergence(training, turns, found)] == [found] * 3
    assert estimate_divergence(replace(training, recipe=replace(recipe, reference=replace(reference, divergence=None))), [turns]) is None
    assert scale.grad is None and model.training
    # Another rank has three batches in the first turn, and this one forwards its last one again, uncounted.
    monkeypatch.setattr("overtone.finetune.training.step.gather_from_ranks", lambda _, own: [own, [3] * len(own)])
    forwards: list[Batch] = []
    counted = replace(reference, predict=lambda model, batch: (forwards.append(batch), reference.predict(model, batch))[1])
    training = replace(training, recipe=replace(recipe, reference=counted))
    assert estimate_divergence(training, [turns[:1]]) == pytest.approx((3 - 1) * (1 + 2) / 2) and len(forwards) == 2 * 3
