"""The loss is the negative log-likelihood of generation, reaches every parameter, and does not depend on padding or precision."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from overtone.finetune.config import Lora
from overtone.finetune.modeling import lora_adapters
from overtone.finetune.modeling.loss_head import LossHead
from overtone.finetune.recipe import BASE_DISTANCE, BASE_STATES, Batch
from overtone.recipes.qwen3_tts.model import config_factory, modeling
from overtone.recipes.qwen3_tts.model.modeling import SpeechModel
from overtone.recipes.voice_clone.recipe import RECIPE


def sums(model: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
    return {name: term.sum for name, term in RECIPE.loss(model, batch).items()}


def test_terms_are_fp32_sums_and_start_near_uniform(fresh: Any) -> None:
    with torch.no_grad():
        terms = RECIPE.loss(fresh.model, fresh.batch)
    assert {name: term.weight for name, term in terms.items()} == {"main": 1.0, "sub": 0.3, "main_accuracy": 0.0, "sub_accuracy": 0.0}
    assert list(terms) == list(fresh.batch.targets) and all(term.sum.dtype == torch.float32 for term in terms.values())
    for name, size in (("main", 64 + 1024), ("sub", 64)):  # fresh weights know nothing
        assert 0 < float(terms[name].sum) / fresh.batch.targets[name] - math.log(size) < 1


@torch.no_grad()
def test_the_sums_equal_the_cross_entropy_of_all_logits(fresh: Any) -> None:
    """Head by head as with stacked logits: the cross-entropy of all 15 codebooks at once, and their top-1 guesses."""
    codes = fresh.batch.tensors["codes"][fresh.batch.tensors["frame_mask"]]
    talker, predictor = fresh.model.talker, fresh.model.talker.code_predictor
    embedded = modeling.frame_embeddings(talker, codes)
    states = torch.randn(len(codes), embedded.shape[-1], generator=torch.Generator().manual_seed(0))
    hidden, targets = modeling.run_code_predictor(predictor, states, embedded, codes)
    nll, hits = modeling.sum_codebook_losses(predictor.lm_head, hidden, targets)
    logits = torch.stack([functional.linear(hidden[:, book], head.weight) for book, head in enumerate(predictor.lm_head)], dim=1)
    assert logits.shape == (len(codes), 15, 64) and torch.equal(targets, codes[:, 1:])
    torch.testing.assert_close(nll, functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum"), rtol=1e-6, atol=0)
    assert int(hits) == int((logits.argmax(-1) == targets).sum())


@torch.no_grad()
def test_the_distance_to_a_base_is_that_of_codebook_0(fresh: Any) -> None:
    """Zero for the model's own states, and otherwise that of all logits, at every target of `main`."""
    comparison = RECIPE.base_distance
    assert comparison is not None and isinstance(fresh.model.get_submodule(comparison.head(fresh.model)), LossHead)
    states = comparison.states(fresh.model, fresh.batch)
    assert states.shape[0] == fresh.batch.targets[comparison.term] > 10
    whole, moved = sums(fresh.model, fresh.batch), states + 0.1 * torch.randn(states.shape, generator=torch.Generator().manual_seed(0))
    for base_states in (states, moved):
        found = sums(fresh.model, replace(fresh.batch, tensors={**fresh.batch.tensors, BASE_STATES: base_states}))
        weight = fresh.model.talker.codec_head.weight
        model, base = (functional.linear(each, weight).log_softmax(-1) for each in (states, base_states))
        expected = functional.kl_div(model, base, reduction="sum", log_target=True)
        assert found.pop(BASE_DISTANCE) == pytest.approx(float(expected), rel=1e-4) and found == whole
    assert expected > 0.001


def test_a_head_with_a_lora_adapter_stays_linear_and_gives_the_same_loss(fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lora = Lora(rank=2, targets=r".*(q_proj|codec_head|lm_head\.3)")
    config = fresh.config.model_copy(update={"model": fresh.config.model.model_copy(update={"lora": lora})})
    loaded = RECIPE.load(config)
    heads = {name for name, module in loaded.model.named_modules() if isinstance(module, LossHead)}
    assert heads == {f"talker.code_predictor.lm_head.{book}" for book in range(15) if book != 3}
    lora_adapters.inject_adapters(loaded.model, lora, RECIPE.lora_targets)
    whole = sums(fresh.model, fresh.batch)
    for name in ("talker.codec_head", "talker.code_predictor.lm_head.3"):
        head = fresh.model.get_submodule(name)
        linear = nn.Linear(head.weight.shape[1], head.weight.shape[0], bias=False)
        linear.weight = head.weight
        *path, last = name.split(".")
        monkeypatch.setitem(fresh.model.get_submodule(".".join(path))._modules, last, linear)
    torch.testing.assert_close(sums(fresh.model, fresh.batch), whole)


def test_the_loss_on_a_share_of_the_frames_is_unbiased(fresh: Any) -> None:
    """Its expectation is the loss on all frames, and evaluation uses all frames."""
    model = SpeechModel(fresh.model.talker, fresh.model.speaker_vectors, 0.3, 0.25)
    whole, draws = sums(fresh.model, fresh.batch), []
    for seed in range(200):
        torch.manual_seed(seed)
        with torch.no_grad():
            draws.append(sums(model, fresh.batch))
    assert all(torch.equal(draw["main"], whole["main"]) for draw in draws)
    assert len({float(draw["sub"]) for draw in draws}) > 100
    mean = torch.stack([draw["sub"] for draw in draws]).mean()
    torch.testing.assert_close(mean, whole["sub"].detach(), rtol=2e-3, atol=0)
    assert float(sums(model.eval(), fresh.batch)["sub"].detach()) == float(whole["sub"].detach())
    fresh.model.train()


def test_frame_dropout_changes_the_training_loss_but_not_the_evaluation(fresh: Any) -> None:
    """Codebook 0 is predicted from inputs that lack frames; the others are not, as in generation. Evaluation drops no frames."""
    model = SpeechModel(fresh.model.talker, fresh.model.speaker_vectors, 0.3, 1.0, 0.5)
    torch.manual_seed(0)
    one, other, whole = sums(model, fresh.batch), sums(model, fresh.batch), sums(fresh.model, fresh.batch)
    assert len({float(found["main"].detach()) for found in (one, other, whole)}) == 3
    for found in (one, other):
        torch.testing.assert_close(found["sub"], whole["sub"], rtol=1e-6, atol=0)
        assert torch.equal(found["sub_accuracy"], whole["sub_accuracy"])
    measured = sums(model.eval(), fresh.batch)
    assert all(torch.equal(measured[name], whole[name]) for name in whole)
    fresh.model.train()


def test_dropped_frames_still_condition_the_code_predictor(fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout applies to the talker's input. The code predictor reads the codebooks of each frame; zeros there would be another task."""
    model = SpeechModel(fresh.model.talker, fresh.model.speaker_vectors, 0.3, 1.0, 0.5).train()
    inputs: list[torch.Tensor] = []
    other_codebooks = modeling.run_code_predictor

    def record(predictor: Any, states: torch.Tensor, embedded: torch.Tensor, codes: torch.Tensor) -> Any:
        inputs.append(embedded)
        return other_codebooks(predictor, states, embedded, codes)

    monkeypatch.setattr(modeling, "run_code_predictor", record)
    monkeypatch.setattr(modeling, "drop_frames", lambda embedded, _: torch.zeros_like(embedded))
    with torch.no_grad():
        sums(model, fresh.batch)
        codes = fresh.batch.tensors["codes"][fresh.batch.tensors["frame_mask"]]
        (found,) = inputs
        assert torch.equal(found, modeling.frame_embeddings(model.talker, codes)) and found.abs().sum(dim=(1, 2)).min() > 0


def test_chosen_frames_are_scaled_to_all_frames_in_loss_and_accuracy(fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sums are divided by the number of all frames. Each of two halves is scaled to both, so together they are twice the whole."""
    model = SpeechModel(fresh.model.talker, fresh.model.speaker_vectors, 0.3, 0.5).train()
    frames = int(fresh.batch.tensors["frame_mask"].sum())
    halves = [slice(None, frames // 2), slice(frames // 2, None)]
    monkeypatch.setattr(modeling, "choose_frames", lambda *_: (halves.pop(), 2.0))
    with torch.no_grad():
        one, other = sums(model, fresh.batch), sums(model, fresh.batch)
        monkeypatch.undo()
        whole = sums(fresh.model, fresh.batch)
    assert not halves and 0 < float(one["sub_accuracy"]) < 2 * float(whole["sub_accuracy"])
    assert float(one["sub_accuracy"] + other["sub_accuracy"]) == 2 * float(whole["sub_accuracy"])
    torch.testing.assert_close(one["sub"] + other["sub"], 2 * whole["sub"], rtol=1e-5, atol=0)


def test_frame_dropout_removes_complete_frames() -> None:
    torch.manual_seed(0)
    kept = modeling.drop_frames(torch.ones(4000, 16, 2), 0.25)
    assert set(kept.flatten().tolist()) == {0.0, 1.0} and bool((kept == kept[:, :1, :1]).all())
    assert float(kept[:, 0, 0].mean()) == pytest.approx(0.75, abs=0.03)


@pytest.mark.parametrize(("frames", "share", "count"), [(7, 1.0, 7), (7, 0.5, 4), (7, 0.01, 1), (0, 0.5, 0)])
def test_the_chosen_frames_are_distinct_and_scaled_to_all_frames(frames: int, share: float, count: int) -> None:
    chosen, scale = modeling.choose_frames(frames, share, torch.device("cpu"))
    taken = torch.arange(frames)[chosen].tolist()
    assert len(taken) == len(set(taken)) == count and scale * count == frames


def test_every_trainable_tensor_gets_a_gradient(fresh: Any) -> None:
    fresh.model.zero_grad()
    total = sums(fresh.model, fresh.batch)
    (total["main"] + total["sub"]).backward()
    gradients = {name: parameter.grad for name, parameter in fresh.model.named_parameters()}
    fresh.model.zero_grad()
    assert len(gradients) == 74
    assert [name for name, gradient in gradients.items() if gradient is None or not gradient.abs().max() > 0] == []


def test_the_text_embedding_can_be_excluded_from_training(fresh: Any, nano: Any) -> None:
    config = fresh.config.model_copy(update={"options": RECIPE.Options(trainable="no_text_embedding")})
    trainable = RECIPE.load(config).trainable
    kept = [name for name, _ in fresh.model.named_parameters() if not trainable(name)]
    assert kept == ["talker.model.text_embedding.weight"]


def test_mixed_precision_gives_nearly_the_same_loss(fresh: Any) -> None:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        rough = sums(fresh.model, fresh.batch)
    with torch.no_grad():
        exact = sums(fresh.model, fresh.batch)
    for name in ("main", "sub"):
        assert rough[name].dtype == torch.float32
        torch.testing.assert_close(rough[name], exact[name], rtol=3e-3, atol=0)


def test_a_model_in_bf16_gives_nearly_the_same_loss(fresh: Any) -> None:
    """As under sharding with bf16 compute: parameters are bf16, buffers are not."""
    talker = fresh.model.talker
    config = RECIPE.load(fresh.config).model.talker.config
    with torch.device("meta"):
        other = type(talker)(config)
    other.to_empty(device="cpu").load_state_dict(talker.state_dict())
    other.model.rotary_emb.inv_freq.copy_(talker.model.rotary_emb.inv_freq)
    other.code_predictor.model.rotary_emb.inv_freq.copy_(talker.code_predictor.model.rotary_emb.inv_freq)
    for parameter in other.parameters():
        parameter.data = parameter.data.bfloat16()
    half = SpeechModel(other, fresh.model.speaker_vectors, 0.3, 1.0)
    modeling.replace_output_heads(half, modeling.adapts_no_head)
    with torch.no_grad():
        torch.testing.assert_close(sums(half, fresh.batch)["main"], sums(fresh.model, fresh.batch)["main"], rtol=1e-2, atol=0)


def test_a_predictor_as_wide_as_the_talker_has_no_projection(mini: Any, tmp_path: Any, corpus: Any, rows_of: Any, ready: Any) -> None:
    """As in the 0.6B: text of another width than the talker, talker and predictor equally wide."""
    made = corpus(tmp_path / "data", rows_of({"Anna": "low.flac"}))
    small = ready(made.config(mini), made.rows)
    assert isinstance(small.model.talker.code_predictor.small_to_mtp_projection, nn.Identity)
    total = sums(small.model, small.batch)
    assert 0 < float(total["sub"].detach()) / small.batch.targets["sub"] - math.log(2048) < 1


@pytest.mark.parametrize("size", ["0.6B", "1.7B"])
def test_a_model_on_meta_has_real_buffers(size: str) -> None:
    model = modeling.build_on_meta(config_factory.make_released_config(size), torch.zeros(1, 8), 0.3, 1.0)
    assert all(parameter.is_meta and parameter.dtype == torch.float32 for parameter in model.parameters())
    buffers = dict(model.named_buffers())
    rotary = ["talker.code_predictor.model.rotary_emb.inv_freq", "talker.model.rotary_emb.inv_freq"]
    assert sorted(buffers) == ["speaker_vectors", *rotary] and not any(buffer.is_meta for buffer in buffers.values())
    for name in rotary:  # theta^(-2i/128), i = 0 … 63
        torch.testing.assert_close(buffers[name], 1e6 ** (-torch.arange(0, 128, 2) / 128), rtol=1e-5, atol=0)
    assert model.talker.config._attn_implementation == model.talker.code_predictor.config._attn_implementation == modeling.ATTENTION
    found = {name for name, module in model.named_modules() if isinstance(module, modeling.block_classes())}
    expected = [f"talker.model.layers.{i}" for i in range(28)] + [f"talker.code_predictor.model.layers.{i}" for i in range(5)]
    assert found == set(expected)
