"""Codes equal those of the stock class, alone and in a batch, also of rows that end at different frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from overtone.finetune.errors import UserError
from overtone.recipes.csm.inference.decoding import CsmBatch, CsmDecoder
from overtone.recipes.csm.model.sequence_layout import CsmTokens, tokenize_prompt
from overtone.recipes.speech.decoding.continuous_batching import DecodedCodes
from overtone.recipes.speech.decoding.token_sampling import CodeSampler, FrameSampler
from tests.finetune.synchronizations import report, synchronizations
from tests.recipes.csm.tiny_csm import LearnedCsm, ReadyCsm

TEXTS = (("Please close the window, the rain comes in over the books.", 0), ("Hi.", 1), ("It is late!", 17))
GREEDY = FrameSampler(CodeSampler(greedy=True), CodeSampler(greedy=True))
SAMPLED = FrameSampler(CodeSampler(False, 0.9, 20, 0.95), CodeSampler(False, 0.8, 10))
MOST = 24


class SideBySide:
    """The same prompts in the stock class and here."""

    def __init__(self, stock: Any, ready: ReadyCsm, turns: tuple[tuple[str, int], ...]) -> None:
        self.stock, self.decoder = stock, CsmDecoder(stock, CsmTokens.from_config(stock.config))
        self.prompts = [tokenize_prompt(text, number, ready.loaded.processor.tokenizer) for text, number in turns]

    def expect(self, rows: list[int], most: int = MOST) -> list[list[list[int]]]:
        """By the stock class, each up to its end frame."""
        longest = max(len(self.prompts[row]) for row in rows)
        pads = [longest - len(self.prompts[row]) for row in rows]
        found = self.stock.generate(
            input_ids=torch.tensor([[0] * pad + self.prompts[row] for pad, row in zip(pads, rows, strict=True)]),
            attention_mask=torch.tensor([[0] * pad + [1] * (longest - pad) for pad in pads]),
            do_sample=False,
            depth_decoder_do_sample=False,
            max_new_tokens=most,
        )
        ends = [(one[:, :-1] == 0).all(1).nonzero().flatten().tolist() for one in found]
        return [one[: end[0] if end else None].tolist() for one, end in zip(found, ends, strict=True)]

    def decode(
        self, rows: list[int], sampler: FrameSampler = GREEDY, seeds: Sequence[int] = (0, 0, 0, 0), most: int = MOST
    ) -> list[DecodedCodes]:
        batch = CsmBatch(self.decoder, len(rows))
        return batch.finish([batch.join(self.embed(row), sampler, seed, most) for row, seed in zip(rows, seeds, strict=False)])

    def embed(self, row: int) -> Tensor:
        with torch.inference_mode():
            return self.decoder.embed_text(self.prompts[row])


@pytest.fixture(scope="module")
def untrained(stock: Any, fresh: ReadyCsm) -> SideBySide:
    return SideBySide(stock, fresh, TEXTS)


@pytest.mark.parametrize("rows", [[0], [1], [2], [0, 1, 2]])
def test_greedy_codes_equal_those_of_the_stock_class(untrained: SideBySide, rows: list[int]) -> None:
    expected = untrained.expect(rows)
    assert len({str(codes) for codes in expected}) == len(rows) and [len(codes) for codes in expected] == [MOST] * len(rows)
    assert [one.codes.tolist() for one in untrained.decode(rows)] == expected


def test_memorized_clips_come_back_and_end_in_one_batch(learned: LearnedCsm) -> None:
    """The rows have different lengths, and the ended ones do not disturb the others."""
    turns = tuple((row["text"], learned.ready.loaded.processor.speakers[row["speaker"].lower()]) for row in learned.rows)
    both = SideBySide(learned.stock, learned.ready, turns)
    found = both.decode([0, 1, 2, 3], most=40)
    assert [one.codes.tolist() for one in found] == [row["audio_codes"] for row in learned.rows] == both.expect([0, 1, 2, 3], 40)
    assert all(one.ended for one in found) and len({len(one.codes) for one in found}) > 1
    (cut,) = both.decode([0], most=4)
    assert cut.codes.tolist() == learned.rows[0]["audio_codes"][:4] and not cut.ended


def test_the_last_codebook_does_not_decide_about_the_end(untrained: SideBySide) -> None:
    """As in the stock class."""
    frames = torch.tensor([[0, 0, 0, 0], [0, 0, 0, 7], [0, 0, 7, 0], [7, 0, 0, 0]])
    assert CsmBatch(untrained.decoder, 1).find_ends(frames).tolist() == [True, True, False, False]


def test_sampled_rows_do_not_depend_on_the_other_rows(untrained: SideBySide) -> None:
    together = untrained.decode([0, 1, 2], SAMPLED, [5, 6, 7])
    alone = [untrained.decode([row], SAMPLED, [seed])[0] for row, seed in ((0, 5), (1, 6), (2, 7))]
    assert [one.codes.tolist() for one in together] == [one.codes.tolist() for one in alone]
    assert untrained.decode([0], SAMPLED, [6])[0].codes.tolist() != alone[0].codes.tolist()


def test_the_depth_decoder_has_its_own_sampling(untrained: SideBySide) -> None:
    """With one candidate it is greedy given codebook 0, whatever the seed; codebook 0 still depends on the seed."""
    one, two = (
        untrained.decode([0], FrameSampler(CodeSampler(False, 5.0), CodeSampler(False, 1.0, top_k=1)), [seed], most=1)[0].codes[0]
        for seed in (1, 2)
    )
    greedy = untrained.decode([0], most=1)[0].codes[0]
    assert len({int(one[0]), int(two[0]), int(greedy[0])}) == 3
    same = untrained.decode([0], FrameSampler(GREEDY.first, CodeSampler(False, 1.0, top_k=1)), [1], most=1)[0].codes[0]
    assert same.tolist() == greedy.tolist()


def test_decoding_stops_at_the_last_position_of_the_model(stock: Any, untrained: SideBySide) -> None:
    prompt = untrained.embed(1)
    tokens = replace(untrained.decoder.tokens, positions=len(prompt) + 4)
    batch = CsmBatch(CsmDecoder(stock, tokens), 1)
    (cut,) = batch.finish([batch.join(prompt, GREEDY, 0, 100)])
    assert len(cut.codes) == 4 and not cut.ended
    with pytest.raises(UserError, match=f"a prompt of {len(prompt)} tokens fills the model's {len(prompt)} positions; shorten the text"):
        CsmBatch(CsmDecoder(stock, replace(tokens, positions=len(prompt))), 1).join(prompt, GREEDY, 0, 100)


def test_only_the_copy_of_the_codes_waits_for_the_device(untrained: SideBySide) -> None:
    """So a frame can be captured as a CUDA graph."""
    batch = CsmBatch(untrained.decoder, 2)
    for number in range(2):
        batch.join(untrained.embed(number), SAMPLED, number, MOST)
    with synchronizations(torch.device("cpu")) as found, torch.inference_mode():
        batch.run_frame(batch.cache.find_window(1))
    assert found == [], report(found)
    with synchronizations(torch.device("cpu")) as found:
        batch.step()
    assert len(found) == 1 and "continuous_batching.py" in found[0].place, report(found)
