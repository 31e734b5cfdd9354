"""Tests of `varlen_attention` on models with and without a window, and its refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Gemma2Config, Gemma3TextConfig, LlamaConfig, MistralConfig, PretrainedConfig, Qwen3Config
from transformers.masking_utils import (
    and_masks,
    causal_mask_function,
    chunked_causal_mask_function,
    packed_sequence_mask_function,
    sliding_window_causal_mask_function,
)

from overtone.finetune.distributed import activation_checkpointing
from overtone.finetune.errors import UserError
from overtone.recipes.language.collation import collate, pack, pad
from overtone.recipes.language.modeling import varlen_attention
from overtone.recipes.language.modeling.causal_model import find_block_classes
from overtone.recipes.language.modeling.varlen_attention import Spans
from tests.finetune.synchronizations import report, synchronizations
from tests.recipes.language import tiny_models
from tests.recipes.language.tiny_models import SHAPE, compute_gradients, largest_difference, make_batches, make_model, make_samples

CPU = torch.device("cpu")
WINDOW = 4
LENGTHS = (4, 1, 7)
FAMILIES: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE, head_dim=8, tie_word_embeddings=True),
    "mistral, every layer in a window": MistralConfig(**SHAPE, sliding_window=WINDOW),
    "gemma3, one layer in a window": Gemma3TextConfig(
        **SHAPE, head_dim=8, sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"]
    ),
}
MaskRule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@pytest.fixture(autouse=True)
def registered() -> None:
    varlen_attention.register()


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_and_padded_gradients_equal_those_of_single_samples_with_a_mask(family: str) -> None:
    packed, alone = make_batches()
    assert max(tiny_models.LENGTHS) > 2 * WINDOW
    expected = compute_gradients(make_model(FAMILIES[family], "sdpa"), alone)
    model = make_model(FAMILIES[family], varlen_attention.LOOP)
    assert largest_difference(compute_gradients(model, [packed]), expected) <= 1e-5
    assert largest_difference(compute_gradients(model, [collate(make_samples())]), expected) <= 1e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_forward_and_backward_do_not_wait_for_the_device(family: str) -> None:
    model, batches = make_model(FAMILIES[family], varlen_attention.LOOP), [make_batches()[0], collate(make_samples())]
    with synchronizations(CPU) as found:
        for batch in batches:
            model(batch.tensors, batch.lengths)[0].backward()
    assert not found, report(found)


@pytest.mark.parametrize("how", ["selective", "full"])
def test_activation_checkpointing_does_not_change_gradients(how: Any) -> None:
    packed, alone = make_batches()
    model = make_model(FAMILIES["mistral, every layer in a window"], varlen_attention.LOOP)
    expected = compute_gradients(model, alone)
    activation_checkpointing.wrap_blocks(model, find_block_classes(model), how)
    found = compute_gradients(model, [packed])
    plain = {name.replace("_checkpoint_wrapped_module.", ""): gradient for name, gradient in found.items()}
    assert plain.keys() != found.keys() and largest_difference(plain, expected) <= 1e-5


@pytest.mark.parametrize("window", [None, 1, 3, 5, 8])
def test_spans_equal_the_mask_of_transformers(window: int | None) -> None:
    rule = rule_of(window)
    found = spans_for(rule, window, LENGTHS)
    square = dense(and_masks(rule, same_sample(LENGTHS)), sum(LENGTHS))
    assert found is not None and torch.equal(torch.block_diag(*blocks(found)).bool(), square)
    assert found.bounds.dtype == torch.int32 and found.bounds.tolist() == [0, 4, 5, 12] and found.longest == 7


@pytest.mark.parametrize("chunk", [1, 3, 5, 8])
@pytest.mark.parametrize("lengths", [LENGTHS, ()])
def test_chunks_of_each_sample_equal_the_mask_of_transformers(chunk: int, lengths: tuple[int, ...]) -> None:
    bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32) if lengths else None
    rule: Any = chunked_causal_mask_function(chunk, torch.zeros(1, dtype=torch.int64))
    config = SimpleNamespace(attention_chunk_size=chunk)
    with varlen_attention.packed_row(bounds, lengths), varlen_attention.compare_rule(12):
        found = varlen_attention.make_spans(batch_size=1, kv_length=12, mask_function=rule, local_size=chunk, device=CPU, config=config)
    of_sample = [dense(rule, length) for length in lengths or (12,)]
    assert found is not None and torch.equal(torch.block_diag(*blocks(found)).bool(), torch.block_diag(*of_sample).bool())
    assert found.bounds.tolist() == [0, *accumulate(found.lengths)] and found.longest == max(found.lengths) <= chunk


def test_a_chunk_is_no_window() -> None:
    rule: Any = chunked_causal_mask_function(4, torch.zeros(1, dtype=torch.int64))
    assert varlen_attention.rule_matches(rule, 4, 12, chunked=True) and not varlen_attention.rule_matches(rule, 4, 12)
    assert not varlen_attention.rule_matches(rule, 3, 12, chunked=True)
    row = pad(pack(make_samples()), 70)
    with varlen_attention.packed_row(row.tensors["bounds"], row.lengths), pytest.raises(ValueError, match="row of fixed shape"):
        varlen_attention.make_spans(
            batch_size=1, kv_length=70, mask_function=rule, local_size=4, device=CPU, config=SimpleNamespace(attention_chunk_size=4)
        )


def test_a_window_of_no_positions_attends_to_none() -> None:
    """Qwen2-MoE of transformers 5 makes a mask with such a window, which no layer uses."""
    nothing: Any = and_masks(rule_of(None), lambda batch, head, position, other: other > position)
    assert varlen_attention.rule_matches(nothing, 0, 12) and not varlen_attention.rule_matches(rule_of(None), 0, 12)


@pytest.mark.parametrize("window", [None, 3])
def test_a_rule_of_transformers_is_applied_within_each_sample(window: int | None) -> None:
    bounds = torch.tensor([0, *accumulate(LENGTHS), 12, 12], dtype=torch.int32)
    found = dense(varlen_attention.apply_within_samples(rule_of(window), bounds, 12), 12)
    assert torch.equal(found, dense(and_masks(rule_of(window), same_sample(LENGTHS)), 12))


def test_a_row_with_one_sample_needs_no_spans_unless_a_window_is_shorter() -> None:
    for lengths in ((), (12,)):
        assert spans_for(causal_mask_function, None, lengths) is None
        assert spans_for(rule_of(12), 12, lengths) is None
        found = spans_for(rule_of(11), 11, lengths)
        assert found is not None and found.lengths == (12,) and found.bounds.tolist() == [0, 12] and found.window == 11


def test_rows_of_fixed_shape_differ_only_in_the_values_of_their_bounds() -> None:
    rows = [pad(pack(make_samples()[:count]), 70) for count in (1, 3, 5)]
    kept = []
    for row in rows:
        with varlen_attention.packed_row(row.tensors["bounds"], row.lengths):
            found = varlen_attention.make_spans(batch_size=1, kv_length=70, mask_function=causal_mask_function, device=CPU)
        assert found is not None and found.bounds is row.tensors["bounds"]
        kept.append((found.lengths, found.longest, found.window, found.bounds.shape))
    assert len(set(kept)) == 1 and kept[0][:2] == ((), 70)
    with pytest.raises(ValueError, match="only the kernel"):
        varlen_attention.attend_in_loop(nn.Module(), *torch.zeros(3, 1, 2, 70, 8), found)


@pytest.mark.parametrize(
    ("rule", "window"),
    [
        pytest.param(lambda row, head, position, other: other <= position + 1, None, id="attends to the next one"),
        pytest.param(sliding_window_causal_mask_function(5), None, id="an unexpected window"),
        pytest.param(sliding_window_causal_mask_function(5), 4, id="another window"),
        pytest.param(causal_mask_function, 4, id="no window"),
    ],
)
@pytest.mark.parametrize("lengths", [(), (2, 1)])
def test_another_mask_rule_is_refused_also_in_rows_too_short_to_show_it(
    rule: MaskRule, window: int | None, lengths: tuple[int, ...]
) -> None:
    with varlen_attention.compare_rule(12), pytest.raises(UserError, match=r"set options\.attention: sdpa"):
        spans_for(rule, window, lengths)


@pytest.mark.parametrize("window", [None, 1, 3, 5, 8, 12, 20])
def test_causal_rules_with_and_without_a_window_are_accepted(window: int | None) -> None:
    with varlen_attention.compare_rule(12):
        spans_for(rule_of(window), window, LENGTHS)


def test_a_padding_mask_and_several_packed_rows_are_refused() -> None:
    with varlen_attention.compare_rule(12), pytest.raises(UserError, match="positions attend to others"):
        varlen_attention.make_spans(
            batch_size=1, kv_length=12, mask_function=causal_mask_function, attention_mask=torch.arange(12)[None] < 9, device=CPU
        )
    with varlen_attention.packed_row(torch.tensor([0, 4, 12], dtype=torch.int32), (4, 8)), pytest.raises(ValueError, match="one at a time"):
        varlen_attention.make_spans(batch_size=2, kv_length=12, mask_function=causal_mask_function, device=CPU)


def test_an_option_that_sdpa_ignores_is_refused() -> None:
    model = make_model(Gemma2Config(**SHAPE, head_dim=8), varlen_attention.LOOP)
    with pytest.raises(UserError, match=r"has softcap, .*set options\.attention: eager"):
        batch = make_batches()[0]
        model(batch.tensors, batch.lengths)


def test_masked_sdpa_is_used_only_while_its_context_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = make_model(FAMILIES["llama"], varlen_attention.LOOP), make_batches()[0]
    seen: list[int] = []
    one_by_one = varlen_attention.attend_in_loop
    monkeypatch.setitem(attentions(), varlen_attention.LOOP, lambda *given, **named: seen.append(1) or one_by_one(*given, **named))
    with varlen_attention.masked_sdpa(model.config):
        model(batch.tensors, batch.lengths)
    assert not seen
    model(batch.tensors, batch.lengths)
    assert len(seen) == SHAPE["num_hidden_layers"]


def test_without_a_gpu_the_kernel_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert not varlen_attention.has_kernel(FAMILIES["llama"])


@pytest.mark.parametrize(
    ("capability", "changes", "fits"),
    [
        ((9, 0), {}, True),
        ((7, 5), {}, False),
        ((9, 0), {"head_dim": 512}, False),
        ((9, 0), {"head_dim": 12}, False),
        ((9, 0), {"attention_dropout": 0.1}, False),
        ((9, 0), {"v_head_dim": 16}, False),
    ],
)
def test_the_kernel_is_used_only_for_supported_heads(
    capability: tuple[int, int], changes: dict[str, Any], fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: capability)
    assert varlen_attention.has_kernel(LlamaConfig(**SHAPE, **changes)) == fits


def of_torch_2_10(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False, return_aux=None):
    raise AssertionError("called without a scale and a window")


def of_torch_2_11(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1)):
    return torch.full_like(query, scale * window_size[0])


@pytest.mark.parametrize(("kernel", "usable"), [(of_torch_2_10, False), (of_torch_2_11, True)])
def test_an_older_kernel_is_used_only_if_it_takes_scale_and_window(
    kernel: Callable[..., torch.Tensor], usable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only by its signature: the result of torch 2.11 for shared heads without `enable_gqa` needs a GPU (`untested_on_a_gpu.md`)."""
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))
    assert varlen_attention.has_kernel(LlamaConfig(**SHAPE)) == usable
    if usable:
        made = [torch.randn(1, heads, 58, 64, dtype=torch.bfloat16) for heads in (8, 2, 2)]
        attended, _ = varlen_attention.attend_with_kernel(nn.Module(), *made, spans_of((17, 1, 40), 5), scaling=0.125)
        assert attended.shape == (1, 58, 8, 64) and (attended == 0.5).all(), "the scale, and a window of four positions before each one"


@pytest.mark.parametrize("window", [None, 5])
def test_the_kernel_accepts_its_arguments(window: int | None) -> None:
    """On meta: shapes only."""
    made = [torch.randn(1, heads, 58, 64, device="meta", dtype=torch.bfloat16).requires_grad_() for heads in (8, 2, 2)]
    attended, _ = varlen_attention.attend_with_kernel(nn.Module(), made[0], made[1], made[2], spans_of((17, 1, 40), window), scaling=0.125)
    assert attended.shape == (1, 58, 8, 64) and attended.dtype == torch.bfloat16
    attended.sum().backward()
    assert all(each.grad is not None and each.grad.shape == each.shape for each in made)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch's varlen kernel runs on CUDA alone")
@pytest.mark.parametrize("window", [None, 5])
def test_the_kernel_and_the_loop_give_equal_results(window: int | None) -> None:
    cuda, lengths = torch.device("cuda"), (17, 1, 40)
    made = [torch.randn(1, heads, sum(lengths), 64, device=cuda, dtype=torch.bfloat16) for heads in (8, 2, 2)]
    found, layer = [], nn.Module()
    layer.num_key_value_groups = 4  # type: ignore[assignment]
    for attend in (varlen_attention.attend_in_loop, varlen_attention.attend_with_kernel):
        given = [each.clone().requires_grad_() for each in made]
        attended, _ = attend(layer, *given, spans_of(lengths, window, cuda), scaling=0.125)
        attended.float().square().sum().backward()
        found.append([attended, *(each.grad for each in given)])
    assert all(torch.allclose(one, other, rtol=5e-2, atol=5e-2) for one, other in zip(*found, strict=True))


def spans_of(lengths: tuple[int, ...], window: int | None, device: torch.device = CPU) -> Spans:
    bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device)
    return Spans(lengths, bounds, max(lengths), window)


def spans_for(rule: MaskRule, window: int | None, lengths: tuple[int, ...]) -> Spans | None:
    """Spans of a row of samples with these lengths; without lengths, of one sample of 12 positions."""
    bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32) if lengths else None
    with varlen_attention.packed_row(bounds, lengths):
        return varlen_attention.make_spans(batch_size=1, kv_length=sum(lengths) or 12, mask_function=rule, local_size=window, device=CPU)


def rule_of(window: int | None) -> Any:
    return sliding_window_causal_mask_function(window) if window else causal_mask_function


def same_sample(lengths: tuple[int, ...]) -> MaskRule:
    numbers = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    own: MaskRule = packed_sequence_mask_function(numbers[None])
    return own


def dense(rule: MaskRule, length: int) -> Tensor:
    """[length, length]: row attends to column."""
    places = torch.arange(length)
    return torch.stack([rule(torch.tensor(0), torch.tensor(0), place.expand(length), places) for place in places])


def blocks(found: Spans) -> Iterator[Tensor]:
    for length in found.lengths:
        mask = found.mask(length)
        yield torch.ones(length, length).tril() if mask is None else mask.float()


def attentions() -> dict[str, Any]:
    from transformers import AttentionInterface

    known: dict[str, Any] = AttentionInterface._global_mapping
    return known
