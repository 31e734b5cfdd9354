"""Bugs of published training code for this model, injected one by one: each must fail exactly the checks named for it.

The checks run on the product first. An injection replaces one function of the product for one test; the product has no switch for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from overtone.finetune.modeling.loss_head import LossHead
from overtone.finetune.recipe import Sample
from overtone.recipes.qwen3_tts.inference import stock_qwen_tts
from overtone.recipes.qwen3_tts.model import modeling, sequence_layout
from overtone.recipes.qwen3_tts.model.sequence_layout import IGNORE
from overtone.recipes.voice_clone.recipe import RECIPE
from tests.recipes.qwen3_tts.stock_scores import StockScores, generate_along


@dataclass(frozen=True)
class WeightsInBothPackages:
    """The same weights twice: in our training forward, and in the stock package."""

    model: Any
    processor: sequence_layout.SpeechProcessor
    rows: list[dict[str, Any]]
    generated: list[StockScores]

    def samples(self) -> list[Sample]:
        return [sequence_layout.read_row(row, self.processor) for row in self.rows]


def generate(tts: Any, row: dict[str, Any], vector: Tensor) -> StockScores:
    """The scores of a row in a voice that is given by its vector."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stock_qwen_tts, "make_stored_voice_prompt", lambda tts, row: voice(vector))
        patch.setattr(tts.model.config.talker_config, "spk_id", {"any": 0})
        return generate_along(tts, row, "any")


def voice(vector: Tensor) -> Any:
    from qwen_tts.inference.qwen3_tts_model import VoiceClonePromptItem

    return VoiceClonePromptItem(ref_code=None, ref_spk_embedding=vector, x_vector_only_mode=True, icl_mode=False)


@pytest.fixture(scope="module")
def case(fresh: Any, tmp_path_factory: pytest.TempPathFactory, rows_of: Any) -> WeightsInBothPackages:
    tts = stock_qwen_tts.load(fresh.loaded.base)
    rows = rows_of({"Anna": "high.flac", "Bert": "low.flac"})
    speakers = fresh.loaded.processor.speakers
    vectors = fresh.loaded.buffers["speaker_vectors"]
    generated = [generate(tts, row, vectors[speakers[row["speaker"].lower()]]) for row in rows]
    return WeightsInBothPackages(fresh.model, fresh.loaded.processor, rows, generated)


# ---- the checks


@torch.no_grad()
def predictions(case: WeightsInBothPackages, samples: list[Sample]) -> tuple[Tensor, Tensor]:
    """Our log-probability of every target in the padded batch: codebook 0 and end of speech [ΣT+B], the other codebooks [ΣT, 15]."""
    heads = [case.model.talker.codec_head, *case.model.talker.code_predictor.lm_head]
    inputs_of_head: dict[LossHead, tuple[Tensor, Tensor]] = {}

    def remember(head: LossHead, states: Tensor, targets: Tensor, _: None = None) -> tuple[Tensor, Tensor]:
        inputs_of_head[head] = states, targets
        return ORIGINAL["forward"](head, states, targets)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LossHead, "forward", remember)
        RECIPE.loss(case.model, sequence_layout.collate(samples))
    assert list(inputs_of_head) == heads, "each head is called once"
    first, *others = (
        functional.linear(states, head.weight).log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        for head, (states, targets) in inputs_of_head.items()
    )
    return first, torch.stack(others, dim=1)


def check_first_codebook_is_what_generation_sees(case: WeightsInBothPackages) -> None:
    ours, _ = predictions(case, case.samples())
    assert ours.shape == (sum(len(one.first) for one in case.generated),)
    torch.testing.assert_close(ours, torch.cat([one.first for one in case.generated]), rtol=0, atol=1e-5)


def check_other_codebooks_are_what_generation_sees(case: WeightsInBothPackages) -> None:
    _, ours = predictions(case, case.samples())
    expected = torch.cat([one.others for one in case.generated])
    assert ours.shape == expected.shape
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def check_sums_add_up(case: WeightsInBothPackages) -> None:
    """For any split into micro-batches, with padding: the global count divides the same sums."""
    samples = case.samples()

    def total(cut: list[list[Sample]]) -> dict[str, float]:
        parts = [RECIPE.loss(case.model, sequence_layout.collate(micro)) for micro in cut]
        return {name: sum(float(part[name].sum) for part in parts) for name in parts[0]}

    whole = total([samples])
    for cut in ([samples[:1], samples[1:]], [[sample] for sample in samples]):
        assert total(cut) == pytest.approx(whole, rel=1e-6)


@torch.no_grad()
def check_padding_is_zero(case: WeightsInBothPackages) -> None:
    tensors = sequence_layout.collate(case.samples()).tensors
    embedded = modeling.frame_embeddings(case.model.talker, tensors["codes"][tensors["frame_mask"]])
    inputs = modeling.input_embeddings(case.model.talker, case.model.speaker_vectors, tensors, embedded)
    padding = ~tensors["valid"]
    assert padding.any() and inputs[padding].abs().max() == 0


CHECKS = (
    check_first_codebook_is_what_generation_sees,
    check_other_codebooks_are_what_generation_sees,
    check_sums_add_up,
    check_padding_is_zero,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_product_passes_every_check(check: Callable[[WeightsInBothPackages], None], case: WeightsInBothPackages) -> None:
    check(case)


# ---- the bugs


def double_shift(hidden: Tensor, labels: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    following = labels[:, 2:]
    return hidden[:, :-2][following != IGNORE], following[following != IGNORE]


def shifted_sub_labels(*given: Any) -> tuple[Tensor, Tensor]:
    """The head of each codebook learns the next one's codes; the last head, which has no next one, keeps its own."""
    states, targets = ORIGINAL["other_codebooks"](*given)
    return states, torch.cat([targets[:, 1:], targets[:, -1:]], dim=1)


def states_at_frames(hidden: Tensor, rows: Tensor) -> Tensor:
    return modeling.select_positions(hidden, rows)


def text_without_projection(talker: Any, text: Tensor, valid: Tensor) -> Tensor:
    return talker.model.text_embedding(text) * valid.unsqueeze(-1)


def text_masked_before_projection(talker: Any, text: Tensor, valid: Tensor) -> Tensor:
    return talker.text_projection(talker.model.text_embedding(text) * valid.unsqueeze(-1))


def mean_loss(head: LossHead, hidden: Tensor, targets: Tensor, _: None = None) -> tuple[Tensor, Tensor]:
    nll, hits = ORIGINAL["forward"](head, hidden, targets)
    return nll / len(targets), hits


def without_end(*given: Any) -> Sample:
    sample = ORIGINAL["arrange"](*given)
    sample["labels"][-1] = IGNORE
    return sample


def voice_one_late(*given: Any) -> Sample:
    sample = ORIGINAL["arrange"](*given)
    slot = int(sample["speaker_mask"].nonzero())
    for name in ("codec", "codec_mask", "speaker_mask"):
        sample[name][[slot, slot + 1]] = sample[name][[slot + 1, slot]]
    return sample


ORIGINAL: dict[str, Callable[..., Any]] = {
    "other_codebooks": modeling.run_code_predictor, "arrange": sequence_layout.lay_out_clip, "forward": LossHead.forward,
}  # fmt: skip
FIRST, OTHERS, SUMS, PADDING = CHECKS
BUGS: dict[str, tuple[Any, str, Callable[..., Any], set[Callable[[WeightsInBothPackages], None]]]] = {
    "codebook 0 shifted twice": (modeling, "align_first_codebook", double_shift, {FIRST}),
    "sub-talker labels shifted": (modeling, "run_code_predictor", shifted_sub_labels, {OTHERS}),
    "hidden state at the frame itself": (modeling, "states_before_frames", states_at_frames, {OTHERS}),
    "text projection left out": (modeling, "text_channel", text_without_projection, {FIRST, OTHERS}),
    "mask not applied after the projection": (modeling, "text_channel", text_masked_before_projection, {PADDING}),
    "mean of means": (LossHead, "forward", mean_loss, {SUMS}),
    "end of speech missing": (sequence_layout, "lay_out_clip", without_end, {FIRST}),
    "voice in the wrong slot": (sequence_layout, "lay_out_clip", voice_one_late, {FIRST, OTHERS}),
}


def test_the_list_has_eight_bugs() -> None:
    assert len(BUGS) == 8


@pytest.mark.parametrize("bug", BUGS)
def test_each_bug_fails_exactly_its_checks(bug: str, case: WeightsInBothPackages, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, wrong, expected = BUGS[bug]
    monkeypatch.setattr(module, name, wrong)
    caught = set()
    for check in CHECKS:
        try:
            check(case)
        except AssertionError:
            caught.add(check)
    assert {check.__name__ for check in caught} == {check.__name__ for check in expected}
