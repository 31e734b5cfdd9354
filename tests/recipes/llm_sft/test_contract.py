"""Tests that the training loss is the likelihood of generation, token by token, padded and packed; and that each of eight bugs is detected.

The checks first run on the product. Each bug replaces one function of the product for one test; the product has no switch for it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessorList
from transformers.models.qwen3.modeling_qwen3 import Qwen3Model

from overtone.finetune.config import resolve
from overtone.finetune.data import batching
from overtone.finetune.data.batching import Place, Step
from overtone.finetune.distributed import sharding
from overtone.finetune.distributed.process_group import join, leave
from overtone.finetune.exporting import export
from overtone.finetune.modeling.loss_head import LossHead
from overtone.finetune.recipe import Batch, Sample
from overtone.finetune.training import setup
from overtone.finetune.training import step as steps
from overtone.finetune.training.step import Training
from overtone.recipes.language import collation
from overtone.recipes.language.collation import IGNORE
from overtone.recipes.language.modeling import varlen_attention
from overtone.recipes.language.tokenization import sft_tokenization
from overtone.recipes.language.tokenization.assistant_spans import TurnSpan
from overtone.recipes.llm_sft import toy_chats
from overtone.recipes.llm_sft.demo import split_turns
from overtone.recipes.llm_sft.model import tiny_checkpoint
from overtone.recipes.llm_sft.recipe import RECIPE
from tests.finetune import tiny
from tests.recipes.forced_generation import ForcedTokens
from tests.recipes.llm_sft import tiny_runs

END = "<|im_end|>"
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "tie_word_embeddings": False}
PACKED = {"data.packing": "true", "train.micro_tokens": "110", "train.global_batch_tokens": "100000", "train.precision": "fp32"}
"""Several micro-batches of different sizes, all in one step."""


@dataclass(frozen=True)
class ContractCase:
    """A run that is ready to train the weights of an export, and what plain transformers generates with that export."""

    training: Training
    rows: list[dict[str, Any]]
    answers: list[list[int]]
    """For each row the assistant's tokens, each turn with its end token."""
    generated: Tensor
    """Log-probabilities of all these tokens in cached generation, step by step."""
    gradient: Tensor
    """Gradient of the mean over all of them by definition: row by row, one after the other."""

    @property
    def samples(self) -> list[Sample]:
        return [RECIPE.read(row, self.training.loaded.processor, Path()) for row in self.rows]


def generate(model: Any, tokenizer: Any, messages: list[dict[str, str]]) -> tuple[list[int], list[Tensor]]:
    """Force cached generation along every answer of a chat: the answers' tokens, and their log-probabilities."""
    tokens: list[int] = []
    noted: list[Tensor] = []
    for before, answer in split_turns(messages):
        given = tokenizer.apply_chat_template(before, add_generation_prompt=True, return_dict=True, return_tensors="pt")
        forced = ForcedTokens([*tokenizer(answer)["input_ids"], tokenizer.convert_tokens_to_ids(END)])
        model.generate(**given, logits_processor=LogitsProcessorList([forced]), do_sample=False, max_new_tokens=len(forced.tokens) + 5)
        assert len(forced.noted) == len(forced.tokens), "generation stops at the end of the turn"
        tokens += forced.tokens
        noted += forced.noted
    return tokens, noted


def write_base(folder: Path, family: str) -> Path:
    tiny_checkpoint.build(folder)
    if family == "llama":
        config = {**json.loads((folder / "config.json").read_text()), **LLAMA}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "model.safetensors").write_bytes(tiny_checkpoint.make_weights(config, seed=1))
    return folder


def make_case(folder: Path, family: str) -> Iterator[ContractCase]:
    """Train a few steps with packing and export them. The export is run in plain transformers, and is also the base of another run."""
    chance = random.Random(4)
    rows = [toy_chats.make_chat(chance, frozenset()) for _ in range(5)]
    write_base(folder / "base", family)
    run = tiny_runs.trained(folder, ("data.packing", "true"), ("train.steps", "2"), ("train.lr", "1e-3"), data=rows)
    made = export.export(run, folder / "export")
    tokenizer, plain = AutoTokenizer.from_pretrained(made), AutoModelForCausalLM.from_pretrained(made).eval()
    with torch.no_grad():
        answers, noted = zip(*(generate(plain, tokenizer, row["messages"]) for row in rows), strict=True)
    given = {"model.source": made, "data.train": folder / "chats.jsonl", "run.dir": folder / "again", "log.trackers": "[]", **PACKED}
    config = resolve("llm_sft", RECIPE.Options, [], [(key, str(value)) for key, value in given.items()])
    training, _ = setup.build(config, RECIPE, join((), folder))
    generated = torch.stack([each for of_row in noted for each in of_row])
    yield ContractCase(training, rows, list(answers), generated, plain_gradient(training, rows, len(generated)))
    leave()


def plain_gradient(training: Training, rows: list[dict[str, Any]], count: int) -> Tensor:
    training.model.train()
    for row in rows:
        batch = collation.collate([RECIPE.read(row, training.loaded.processor, Path())])
        sharding.prepare_backward(training.model, training.strategy, last=True)
        (RECIPE.loss(training.model, batch)["nll"].sum / count).backward()
    return take_gradients(training)


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContractCase]:
    yield from make_case(tmp_path_factory.mktemp(request.param), request.param)


# ---- checks


@torch.no_grad()
def likelihoods(training: Training, batch: Batch) -> Tensor:
    """The log-probability of each target of a batch, in order, by the training forward."""
    found: list[Tensor] = []

    def one_by_one(head: Any, given: tuple[Tensor, Tensor, None]) -> None:
        found.extend(-LossHead.forward(head, hidden[None], target[None])[0] for hidden, target in zip(*given[:2], strict=True))

    model = training.model.eval()
    with model.get_submodule(model.head_path).register_forward_pre_hook(one_by_one):
        RECIPE.loss(model, batch)
    sharding.reshard(model)
    return torch.stack(found)


def check_supervised_tokens_are_the_assistants(case: ContractCase) -> None:
    assert [sample["ids"][sample["supervised"]].tolist() for sample in case.samples] == case.answers


def check_padded_likelihood_is_that_of_generation(case: ContractCase) -> None:
    torch.testing.assert_close(likelihoods(case.training, collation.collate(case.samples)), case.generated, rtol=0, atol=1e-5)


def check_packed_likelihood_is_that_of_generation(case: ContractCase) -> None:
    torch.testing.assert_close(likelihoods(case.training, collation.pack(case.samples)), case.generated, rtol=0, atol=1e-5)


def check_packed_samples_do_not_see_each_other(case: ContractCase) -> None:
    """The same likelihoods, to the last bit, after another sample of the same length."""
    first, *others = case.samples
    another = {**first, "ids": first["ids"].flip(0)}
    one, other = (likelihoods(case.training, collation.pack([sample, *others])) for sample in (first, another))
    rest = slice(int((collation.shift_labels(first) != IGNORE).sum()), None)
    assert not torch.equal(one, other) and torch.equal(one[rest], other[rest])


def check_positions_start_again_with_each_sample(case: ContractCase) -> None:
    batch = collation.pack(case.samples)
    lengths = [len(sample["ids"]) for sample in case.samples]
    assert batch.tensors["positions"].tolist() == [[place for length in lengths for place in range(length)]]


def check_an_epoch_is_the_mean_over_every_target(case: ContractCase) -> None:
    """Loss and gradient of the micro-batches of a step equal those of all rows one by one, divided once by the number of their targets."""
    training = case.training
    order, loader = (
        training.order,
        steps.make_loader(training, training.rows),
    )
    (step,) = batching.steps(order, training.rows.lengths, Place(), epochs=1)
    turns = loader.turns(step.micros)
    loader.close()
    assert len({turn.batch.targets["nll"] for turn in turns}) > 1, "micro-batches with equally many targets would hide a mean of means"
    counts = steps.global_counts(training.world, turns)
    totals, _ = steps.accumulate(training, turns, counts)
    found = take_gradients(training)
    assert counts["nll"] == len(case.generated)
    assert float(totals["nll"]) / counts["nll"] == pytest.approx(-float(case.generated.mean()), rel=1e-6)
    assert (found - case.gradient).norm() <= 1e-5 * case.gradient.norm()


def take_gradients(training: Training) -> Tensor:
    """All gradients as one vector; clears them."""
    taken = torch.cat([parameter.grad.full_tensor().flatten() for parameter in training.model.parameters()])  # type: ignore[union-attr]
    training.model.zero_grad(set_to_none=True)
    return taken


CHECKS = (
    check_supervised_tokens_are_the_assistants,
    check_padded_likelihood_is_that_of_generation,
    check_packed_likelihood_is_that_of_generation,
    check_packed_samples_do_not_see_each_other,
    check_positions_start_again_with_each_sample,
    check_an_epoch_is_the_mean_over_every_target,
)


@pytest.mark.parametrize("case", ["qwen3", "llama"], indirect=True)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_product_passes_each_check(check: Callable[[ContractCase], None], case: ContractCase) -> None:
    assert len(case.generated) >= 40 and {message["role"] for row in case.rows for message in row["messages"]} >= {"system"}
    check(case)


# ---- bugs


def shifted_twice(sample: Sample) -> Tensor:
    targets = torch.full_like(sample["ids"], IGNORE)
    targets[:-2] = torch.where(sample["supervised"][2:], sample["ids"][2:], IGNORE)
    return targets


def not_shifted(sample: Sample) -> Tensor:
    return torch.where(sample["supervised"], sample["ids"], IGNORE)


def one_turn_early(of: Any, text: str, messages: list[int], ends: frozenset[str]) -> list[TurnSpan]:
    turns = ORIGINAL["find_turns"](of, text, messages, ends)
    return [TurnSpan(before.end, turn.start) for before, turn in zip([TurnSpan(0, 0), *turns], turns, strict=False)]


def without_end(*given: Any) -> list[TurnSpan]:
    return [TurnSpan(turn.start, turn.end - len(END)) for turn in ORIGINAL["find_turns"](*given)]


def seeing_all_that_came_before(self: Any, input_ids: Tensor, **given: Any) -> Any:
    """Positions restart, but all earlier ones are attended to."""
    with varlen_attention.packed_row(None, ()):
        return ORIGINAL["decoder"](self, input_ids=input_ids, **given)


def counting_on(rows: list[Sample]) -> Batch:
    batch = ORIGINAL["pack"](rows)
    whole = batch.tensors["ids"].shape[1]
    as_one = {"positions": torch.arange(whole)[None], "bounds": torch.tensor([0, whole], dtype=torch.int32)}
    return Batch({**batch.tensors, **as_one}, batch.targets, (whole,))


def mean_of_means(training: Training, turns: list[Any], counts: dict[str, float]) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The mean of the micro-batches' means instead of the mean of the step."""
    totals = {name: torch.zeros(()) for name in counts}
    weights: dict[str, float] = {}
    for turn in turns:
        own = steps.global_counts(training.world, [turn])
        summed, weights = ORIGINAL["accumulate"](training, [turn], {name: count * len(turns) for name, count in own.items()})
        totals = {name: totals[name] + summed[name] / own[name] / len(turns) * counts[name] for name in counts}
    return totals, weights


def read_again(case: ContractCase, cache: Path) -> ContractCase:
    """The case with samples that are read with the bug; the samples in the cache were read without it."""
    training = case.training
    path = training.config.data.train
    assert isinstance(path, Path)
    rows = tiny.open_rows(path, cache, "with the bug", RECIPE, training.loaded, training.config, training.world)
    recipe = replace(training.recipe, collate=collation.collate, pack=collation.pack)  # as they are now
    return replace(case, training=replace(training, recipe=recipe, rows=rows))


def without_the_last(order: Any, lengths: Any, place: Place, epochs: int | None) -> Iterator[Step]:
    for step in ORIGINAL["steps"](order, lengths, place, epochs):
        yield Step(step.micros[:-1], step.after)


ORIGINAL: dict[str, Any] = {
    "find_turns": sft_tokenization.find_turns,
    "decoder": Qwen3Model.forward,
    "pack": collation.pack,
    "accumulate": steps.accumulate,
    "steps": batching.steps,
}
MASK, SIDE_BY_SIDE, END_TO_END, APART, POSITIONS, EPOCH = CHECKS
LIKELIHOODS = {SIDE_BY_SIDE, END_TO_END, EPOCH}
BUGS: dict[str, tuple[Any, str, Callable[..., Any], set[Callable[[ContractCase], None]]]] = {
    "label shifted twice": (collation, "shift_labels", shifted_twice, LIKELIHOODS),
    "no shift": (collation, "shift_labels", not_shifted, LIKELIHOODS),
    "mask off by one turn": (sft_tokenization, "find_turns", one_turn_early, {MASK, *LIKELIHOODS}),
    "end of turn not supervised": (sft_tokenization, "find_turns", without_end, {MASK, *LIKELIHOODS}),
    "packed samples leaking": (Qwen3Model, "forward", seeing_all_that_came_before, {END_TO_END, APART, EPOCH}),
    "positions not restarting": (collation, "pack", counting_on, {END_TO_END, APART, POSITIONS, EPOCH}),
    "mean of means": (steps, "accumulate", mean_of_means, {EPOCH}),
    "last micro-batch dropped": (batching, "steps", without_the_last, {EPOCH}),
}


def test_eight_bugs_are_listed() -> None:
    assert len(BUGS) == 8


@pytest.mark.parametrize("case", ["qwen3"], indirect=True)
@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_is_detected_by_its_checks_and_no_others(
    bug: str, case: ContractCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name, wrong, expected = BUGS[bug]
    monkeypatch.setattr(module, name, wrong)
    case = read_again(case, tmp_path)
    caught = set()
    for check in CHECKS:
        try:
            check(case)
        except AssertionError:
            caught.add(check)
    case.training.model.zero_grad(set_to_none=True)
    assert {check.__name__ for check in caught} == {check.__name__ for check in expected}
