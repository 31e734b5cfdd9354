"""End to end: a memorized clip comes back from the stock class's greedy generation code by code, with the likelihood of training."""

from __future__ import annotations

import pytest
import torch

from overtone.recipes.csm.model.sequence_layout import tokenize_prompt
from overtone.recipes.csm.recipe import RECIPE
from tests.recipes.csm.tiny_csm import LearnedCsm, generate_greedily, means


def test_the_stock_class_regenerates_memorized_clips_exactly(learned: LearnedCsm) -> None:
    assert means(learned.ready.model, learned.ready.batch)["depth_accuracy"] == 1
    for row, sample in zip(learned.rows, learned.ready.samples, strict=True):
        prompt = sample["ids"][: len(sample["ids"]) - len(sample["codes"])]
        assert generate_greedily(learned.stock, prompt) == row["audio_codes"]


def test_speaker_and_text_determine_the_codes(learned: LearnedCsm) -> None:
    processing = learned.ready.loaded.processor
    assert len({str(row["audio_codes"]) for row in learned.rows}) == 4
    for row in learned.rows:
        prompt = tokenize_prompt(row["text"], processing.speakers[row["speaker"].lower()], processing.tokenizer)
        assert generate_greedily(learned.stock, torch.tensor(prompt)) == row["audio_codes"]


def test_the_teacher_forced_likelihood_is_that_of_generation(learned: LearnedCsm) -> None:
    """The scores of each generated codebook, from the stock class step by step with its caches, sum up to the loss of training."""
    sample, found = learned.ready.samples[0], list[torch.Tensor]()
    stock, frames = learned.stock, len(sample["codes"])
    hook = stock.depth_decoder.register_forward_hook(lambda _, __, output: found.append(output.logits[:, -1].log_softmax(-1)))
    try:
        with torch.no_grad():
            output = stock.generate(
                input_ids=sample["ids"][: len(sample["ids"]) - frames][None],
                do_sample=False,
                depth_decoder_do_sample=False,
                max_new_tokens=frames,
                return_dict_in_generate=True,
                output_logits=True,
            )
    finally:
        hook.remove()
    codes = output.sequences[0]
    assert codes.tolist() == sample["codes"].tolist()
    first = torch.stack([scores[0].log_softmax(-1) for scores in output.logits])
    others = torch.cat(found).view(frames, codes.shape[1] - 1, -1)
    with torch.no_grad():
        terms = RECIPE.loss(learned.ready.model, RECIPE.collate([sample]))
    assert terms["backbone"].sum.item() == pytest.approx(-first.gather(1, codes[:, :1]).sum().item(), abs=1e-5)
    assert terms["depth"].sum.item() == pytest.approx(-others.gather(2, codes[:, 1:, None]).sum().item(), abs=1e-5)
