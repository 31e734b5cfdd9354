"""The training forward equals the stock class's loss, and generation; the faults of other trainers are named and absent."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import init_empty_weights
from torch.nn import functional

from overtone.finetune.modeling.loading import find_misfits, materialise
from overtone.finetune.modeling.loss_head import LossHead
from overtone.finetune.recipe import BASE_DISTANCE, BASE_STATES, Batch
from overtone.recipes.csm.model.model_config import RELEASED, read_config
from overtone.recipes.csm.model.modeling import BLOCKS, COPY, build_on_meta, choose_frames
from overtone.recipes.csm.model.sequence_layout import lay_out_clip
from overtone.recipes.csm.recipe import RECIPE
from tests.recipes.csm.tiny_csm import BOOKS, ReadyCsm, call_stock, load_stock, make_labels, make_ready, make_rows, means, weighted_loss


def test_the_loss_of_a_clip_is_that_of_the_stock_class(fresh: ReadyCsm, stock: Any) -> None:
    for sample in fresh.samples:
        ours, theirs = means(fresh.model, RECIPE.collate([sample])), call_stock(stock, sample)
        assert ours["backbone"] == pytest.approx(theirs.backbone_loss.item(), abs=1e-6)
        assert ours["depth"] == pytest.approx(theirs.depth_decoder_loss.item(), abs=1e-6)


def test_the_distance_to_a_base_is_that_of_codebook_0(tmp_path: Path, tiny: Path) -> None:
    """With the chunked head that it needs, the loss is the same. It is zero for the model's own states, and otherwise that of all
    logits."""
    plain = make_ready(tmp_path / "plain", tiny, make_rows(["Ann"]))
    ready = make_ready(tmp_path / "chunked", tiny, make_rows(["Ann"]), ("train.base_distance", "0.1"))
    comparison = RECIPE.base_distance
    assert comparison is not None and isinstance(ready.model.get_submodule(comparison.head(ready.model)), LossHead)
    with torch.no_grad():
        states = comparison.states(ready.model, ready.batch)
        moved = states + 0.1 * torch.randn(states.shape, generator=torch.Generator().manual_seed(0))
        for base_states in (states, moved):
            batch = replace(ready.batch, tensors={**ready.batch.tensors, BASE_STATES: base_states})
            found = {name: float(term.sum) for name, term in RECIPE.loss(ready.model, batch).items()}
            model, base = (functional.linear(each, ready.model.lm_head.weight).log_softmax(-1) for each in (states, base_states))
            expected = float(functional.kl_div(model, base, reduction="sum", log_target=True))
            assert found.pop(BASE_DISTANCE) == pytest.approx(expected, rel=1e-4)
            assert found == pytest.approx({name: float(term.sum) for name, term in RECIPE.loss(plain.model, plain.batch).items()}, rel=1e-5)
    assert expected > 0.001 and len(states) == ready.batch.targets[comparison.term]


def test_a_batch_of_clips_with_padding_is_the_sum_of_its_clips(fresh: ReadyCsm) -> None:
    with torch.no_grad():
        whole = RECIPE.loss(fresh.model, fresh.batch)
        parts = [RECIPE.loss(fresh.model, RECIPE.collate([sample])) for sample in fresh.samples]
    assert len({len(sample["ids"]) for sample in fresh.samples}) > 1
    for name, term in whole.items():
        assert term.sum.item() == pytest.approx(sum(part[name].sum.item() for part in parts), rel=1e-6)


def test_the_depth_loss_is_divided_by_its_targets_and_not_by_frames(fresh: ReadyCsm, stock: Any) -> None:
    """With `num_items_in_batch`, as its Trainer calls it, the stock class divides the sum over C - 1 codebooks by frames."""
    sample = fresh.samples[0]
    batch = RECIPE.collate([sample])
    theirs = call_stock(stock, sample, num_items_in_batch=len(sample["codes"])).depth_decoder_loss.item()
    right = call_stock(stock, sample).depth_decoder_loss.item()
    assert theirs == pytest.approx((BOOKS - 1) * right, rel=1e-6)
    assert means(fresh.model, batch)["depth"] == pytest.approx(right, abs=1e-6)
    assert batch.targets["depth"] == (BOOKS - 1) * len(sample["codes"])


def test_the_depth_decoder_sees_the_state_before_the_frame(fresh: ReadyCsm) -> None:
    """The state at the frame has seen the codes that the depth decoder is to predict: the loss of frame t must not depend on it."""
    sample, at = fresh.samples[0], len(fresh.samples[0]["codes"]) - 2
    seen: list[torch.Tensor] = []
    hook = fresh.model.depth_decoder.model.register_forward_pre_hook(
        lambda _, __, known: seen.append(known["inputs_embeds"]), with_kwargs=True
    )
    try:
        for change in (0, 1):
            codes = sample["codes"].clone()
            codes[at] = (codes[at] + change) % 31 + 1
            means(fresh.model, RECIPE.collate([{**sample, "codes": codes}]))
    finally:
        hook.remove()
    assert torch.equal(seen[0][: at + 1, 0], seen[1][: at + 1, 0])
    assert not torch.allclose(seen[0][at + 1, 0], seen[1][at + 1, 0])


def test_the_end_frame_is_learned_in_every_codebook(fresh: ReadyCsm, tmp_path: Path, tiny: Path) -> None:
    """Generation stops only if all codebooks but the last are the end code, so the depth decoder must learn it too, at any share."""
    ready = make_ready(tmp_path, tiny, make_rows(["Ann"]), ("options.depth_share", "0.01"))
    chosen, factors = choose_frames(ready.batch.tensors["speech"], ready.batch.tensors["ends"], 0.01)
    assert isinstance(chosen, torch.Tensor)
    assert chosen[-2:].tolist() == [9, 16] and factors[-2:].tolist() == [1, 1]
    assert (ready.batch.tensors["codes"][chosen[-2:]] == 0).all()
    ready.model.train()
    weighted_loss(ready.model, ready.batch).backward()
    table = ready.model.depth_decoder.codebooks_head.weight.grad[:, :, 0]  # the head's column of the end code
    assert (table.abs().sum(1) > 0).all()


def test_a_share_of_the_frames_leaves_the_backbone_as_it_is_and_is_the_stock_class_with_its_labels(
    fresh: ReadyCsm, stock: Any, tmp_path: Path, tiny: Path
) -> None:
    """In the stock class, -101 means: backbone only. Our frames that are not drawn must be those."""
    ready = make_ready(tmp_path, tiny, make_rows(["Ann"])[:1], ("options.depth_share", "0.3"))
    sample, (batch, frames) = ready.samples[0], (ready.batch, len(ready.samples[0]["codes"]))
    ready.model.train()
    torch.manual_seed(5)
    chosen, _ = choose_frames(batch.tensors["speech"], batch.tensors["ends"], 0.3)
    assert isinstance(chosen, torch.Tensor) and len(chosen) == math.ceil(0.3 * (frames - 1)) + 1
    torch.manual_seed(5)
    ours = means(ready.model, batch)
    by_frame = [call_stock(stock, sample, only_frames(sample, [frame])) for frame in chosen.tolist()]
    sums = [(BOOKS - 1) * each.depth_decoder_loss.item() for each in by_frame]
    expected = (sum(sums[:-1]) * (frames - 1) / (len(chosen) - 1) + sums[-1]) / batch.targets["depth"]
    assert ours["depth"] == pytest.approx(expected, rel=1e-5)
    assert ours["backbone"] == pytest.approx(by_frame[0].backbone_loss.item(), abs=1e-6)


def only_frames(sample: dict[str, torch.Tensor], kept: list[int]) -> torch.Tensor:
    """The labels that the stock class makes of -101 for all other frames: -100 in all codebooks but the first."""
    labels, start = make_labels(sample), len(sample["ids"]) - len(sample["codes"])
    others = [start + frame for frame in range(len(sample["codes"])) if frame not in kept]
    labels[others, 1:] = -100
    return labels


def test_from_audio_the_stock_class_computes_the_same_with_its_labels_and_minus_101(fresh: ReadyCsm, stock: Any) -> None:
    """Audio through the stock class's own codec and merging; -101 at three frames takes the depth decoder's loss of these frames alone."""
    torch.manual_seed(3)
    audio, tokens = torch.randn(1, 1, 6 * 1920), fresh.loaded.processor.tokens
    with torch.no_grad():
        codes = stock.codec_model.encode(audio).audio_codes[0].T
    prompt = fresh.samples[0]["ids"][: len(fresh.samples[0]["ids"]) - len(fresh.samples[0]["codes"])].tolist()
    sample = lay_out_clip(prompt, codes, tokens)
    labels = torch.where((sample["ids"] == tokens.audio) | (sample["ids"] == tokens.audio_end), sample["ids"], -100)
    given = {"input_ids": sample["ids"][None], "input_values": audio, "input_values_cutoffs": torch.tensor([[audio.shape[-1]]])}
    whole, ours = stock(**given, labels=labels[None]), means(fresh.model, RECIPE.collate([sample]))
    assert ours["backbone"] + ours["depth"] == pytest.approx(whole.loss.item(), abs=2e-6)
    labels[len(prompt) + torch.tensor([0, 2, 3])] = -101
    part, expected = stock(**given, labels=labels[None]), call_stock(stock, sample, only_frames(sample, [1, 4, 5, 6]))
    assert part.depth_decoder_loss.item() == pytest.approx(expected.depth_decoder_loss.item(), abs=1e-6)
    assert part.backbone_loss.item() == pytest.approx(ours["backbone"], abs=1e-6)


def test_the_share_is_drawn_anew_in_every_call_and_not_at_all_in_evaluation(tmp_path: Path, tiny: Path) -> None:
    """A draw in `read`, whose result is cached, would be the same in every epoch."""
    ready = make_ready(tmp_path, tiny, make_rows(["Ann"]), ("options.depth_share", "0.3"))
    ready.model.train()
    losses = {round(means(ready.model, ready.batch)["depth"], 6) for _ in range(5)}
    assert len(losses) > 1
    ready.model.eval()
    assert len({means(ready.model, ready.batch)["depth"] for _ in range(3)}) == 1


def test_the_expected_factor_of_every_frame_is_one(fresh: ReadyCsm) -> None:
    """So the expected loss of a share is that of all frames."""
    torch.manual_seed(0)
    speech, ends = fresh.batch.tensors["speech"], fresh.batch.tensors["ends"]
    total = torch.zeros(len(speech) + len(ends))
    for _ in range(400):
        chosen, factors = choose_frames(speech, ends, 0.4)
        assert isinstance(chosen, torch.Tensor) and len(chosen.unique()) == len(chosen)
        assert factors.sum().item() == pytest.approx(len(total))
        total[chosen] += factors / 400
    assert (total[ends] - 1).abs().max() < 1e-4 and (total - 1).abs().max() < 0.35


def test_every_trainable_tensor_gets_a_gradient(tmp_path: Path, tiny: Path) -> None:
    ready = make_ready(tmp_path, tiny, make_rows(["Ann"]))
    weighted_loss(ready.model, ready.batch).backward()
    named = dict(ready.model.named_parameters())
    assert len(named) == 34 and not any(name.startswith("codec_model.") for name in named)
    assert [name for name, parameter in named.items() if parameter.grad is None or not parameter.grad.any()] == []


def test_gradients_equal_those_of_the_stock_class(tmp_path: Path, tiny: Path) -> None:
    ready, stock = make_ready(tmp_path, tiny, make_rows(["Ann"])[:1]), load_stock(tiny)
    weighted_loss(ready.model, ready.batch).backward()
    call_stock(stock, ready.samples[0]).loss.backward()
    theirs = dict(stock.named_parameters())  # the shared table has one of its two names here
    theirs["depth_decoder.model.embed_tokens.weight"] = stock.depth_decoder.model.embed_tokens.weight
    for name, parameter in ready.model.named_parameters():
        assert torch.allclose(parameter.grad, theirs[name].grad, atol=1e-6, rtol=1e-4), name


def test_untied_tables_are_both_trained(tmp_path: Path, tiny: Path) -> None:
    config = read_config(tiny)
    config.tie_codebooks_embeddings = False
    model = build_on_meta(config, tiny)
    assert {name for name, _ in model.named_parameters()} - {
        name for name, _ in build_on_meta(read_config(tiny), tiny).named_parameters()
    } == {COPY}
    model._apply(lambda tensor: torch.empty_like(tensor, device="cpu").normal_(std=0.1) if tensor.is_meta else tensor)
    sample = {"ids": torch.tensor([1, 2, 3, 4]), "codes": torch.tensor([[1, 2, 3, 4], [0, 0, 0, 0]]), "turns": torch.tensor([[2, 2, 1]])}
    weighted_loss(model, RECIPE.collate([sample])).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


def test_the_released_model_has_1553_million_trained_parameters() -> None:
    """Counted by hand from `models.py` in SesameAILabs/csm: Llama 3.2 1B and 100M without their embeddings and heads, and the tables."""
    from transformers import CsmConfig, CsmForConditionalGeneration

    hidden, depth, mlp, codes, books = 2048, 1024, 8192, 2051, 32
    layer = {
        width: 2 * width * width + 2 * width * head_dim * groups + 3 * width * mlp + 2 * width
        for width, head_dim, groups in ((hidden, 64, 8), (depth, 128, 2))
    }
    tables = 128256 * hidden + books * codes * hidden + codes * hidden + (books - 1) * depth * codes + hidden * depth
    expected = 16 * layer[hidden] + hidden + 4 * layer[depth] + depth + tables
    config = CsmConfig(**RELEASED)
    model = build_on_meta(config, Path())
    assert sum(parameter.numel() for parameter in model.parameters()) == expected == 1_552_791_552
    with init_empty_weights():
        stock = CsmForConditionalGeneration(CsmConfig(**RELEASED))
    theirs = {name: parameter.shape for name, parameter in stock.named_parameters()}
    ours = {name: parameter.shape for name, parameter in model.named_parameters()}
    assert all(theirs.get(name, shape) == shape for name, shape in ours.items())
    assert {name for name in theirs if not name.startswith("codec_model.")} - ours.keys() <= {COPY}
    assert sum(isinstance(module, BLOCKS) for module in model.modules()) == 20


def test_the_base_may_have_the_shared_table_under_both_names(tiny: Path, fresh: ReadyCsm) -> None:
    assert find_misfits(fresh.model, tiny) == []
    meta = build_on_meta(read_config(tiny), tiny)
    materialise(meta, tiny, {}, torch.device("cpu"), 0)
    assert COPY not in dict(meta.named_parameters())


def test_an_empty_share_is_impossible(fresh: ReadyCsm) -> None:
    """At least one frame of speech is drawn, however small the share."""
    batch: Batch = RECIPE.collate(fresh.samples[:1])
    chosen, factors = choose_frames(batch.tensors["speech"], batch.tensors["ends"], 1e-9)
    assert isinstance(chosen, torch.Tensor) and len(chosen) == len(factors) == 2
    assert factors.tolist() == [len(batch.tensors["speech"]), 1]
