"""Codes equal those of the stock loop, with penalty and padding, alone and in a batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers.generation import LogitsProcessorList, MinNewTokensLengthLogitsProcessor, SuppressTokensLogitsProcessor

from overtone.recipes.qwen3_tts.inference import decoding, stock_qwen_tts
from overtone.recipes.qwen3_tts.inference.decoding import TalkerBatch, TalkerDecoder
from overtone.recipes.qwen3_tts.inference.exported_folder import ExportedModel
from overtone.recipes.qwen3_tts.inference.prompt_embeddings import PromptEmbedder, PromptEmbeddings, VoiceConditioning
from overtone.recipes.qwen3_tts.model.sequence_layout import tokenize_text
from overtone.recipes.speech.decoding.cached_decoder_layers import CachedDecoderLayers
from overtone.recipes.speech.decoding.continuous_batching import DecodedCodes
from overtone.recipes.speech.decoding.ragged_kv_cache import RowCache
from overtone.recipes.speech.decoding.token_sampling import CodeSampler, FrameSampler

TEXTS = ("Please close the window, the rain comes in over the books.", "Hi.", "It is late!")
LANGUAGES = ("english", "auto", "german")
GREEDY = FrameSampler(CodeSampler(greedy=True), CodeSampler(greedy=True))
SAMPLED = CodeSampler(False, 0.9, 50, 0.95, 1.05)
MOST = 12
NEVER = torch.iinfo(torch.int64).max


class NanoModels:
    """The untrained nano model in the stock package and here, with three made-up voices."""

    def __init__(self, folder: Path) -> None:
        self.tts, self.exported = stock_qwen_tts.load(folder), ExportedModel.inspect(folder)
        self.voices = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
        self.decoder = TalkerDecoder(self.tts.model.talker, self.exported.ids)

    def stock(self, rows: list[int], streamed: bool, penalty: float) -> list[list[list[int]]]:
        from qwen_tts.inference.qwen3_tts_model import VoiceClonePromptItem

        voices = [VoiceClonePromptItem(None, self.voices[row], True, False) for row in rows]
        codes, _ = self.tts.model.generate(
            input_ids=self.tts._tokenize_texts([self.tts._build_assistant_text(TEXTS[row]) for row in rows]),
            languages=[LANGUAGES[row] for row in rows],
            voice_clone_prompt=self.tts._prompt_items_to_voice_clone_prompt(voices),
            non_streaming_mode=not streamed,
            max_new_tokens=MOST + 1,
            **stock_qwen_tts.GREEDY | {"repetition_penalty": penalty},
        )
        return [one.tolist() for one in codes]

    @torch.no_grad()
    def prompts(self, rows: list[int], streamed: bool = False) -> list[PromptEmbeddings]:
        embedder, ids = PromptEmbedder(self.tts.model.talker, self.exported.ids), self.exported.ids
        tokens = [tokenize_text(TEXTS[row], self.exported.processor) for row in rows]
        voices = [VoiceConditioning(self.voices[row]) for row in rows]
        languages = [ids.languages.get(LANGUAGES[row]) for row in rows]
        return [embedder.embed(*one, streamed) for one in zip(tokens, languages, voices, strict=True)]

    def decode(self, prompts: list[PromptEmbeddings], choice: CodeSampler, seeds: list[int], most: int = MOST) -> list[DecodedCodes]:
        batch, sampler = TalkerBatch(self.decoder, len(prompts)), FrameSampler(choice, choice)
        return batch.finish([batch.join(prompt, sampler, seed, most) for prompt, seed in zip(prompts, seeds, strict=True)])


@pytest.fixture(scope="module")
def model(nano: Path) -> NanoModels:
    return NanoModels(nano)


@pytest.mark.parametrize("part", ["talker", "predictor"])
@torch.no_grad()
def test_the_cached_layers_compute_what_the_package_computes(nano: Path, part: str) -> None:
    """Also with the talker's rotary positions in three sections."""
    talker = stock_qwen_tts.load(nano).model.talker
    stock = talker.model if part == "talker" else talker.code_predictor.model
    x = torch.randn(9, stock.config.hidden_size, generator=torch.Generator().manual_seed(0))
    expected = stock(inputs_embeds=x[None], use_cache=False).last_hidden_state[0]
    cache = RowCache(CachedDecoderLayers(stock, decoding.FAMILY), 1)
    cache.reserve(9)
    torch.testing.assert_close(cache.read_prompt(0, x), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("rows", "penalty"), [([0], 1.0), ([2], 1.3), ([0, 1, 2], 1.0), ([0, 1, 2], 1.3)])
def test_greedy_codes_equal_those_of_the_stock_loop(model: NanoModels, rows: list[int], penalty: float, streamed: bool) -> None:
    expected = model.stock(rows, streamed, penalty)
    found = model.decode(model.prompts(rows, streamed), CodeSampler(True, repetition_penalty=penalty), [0] * len(rows))
    assert [one.codes.tolist() for one in found] == expected
    assert [one.ended for one in found] == [len(codes) < MOST for codes in expected]


def test_sampled_rows_do_not_depend_on_the_other_rows(model: NanoModels) -> None:
    together = model.decode(model.prompts([0, 1, 2]), SAMPLED, [5, 6, 7])
    alone = [model.decode(model.prompts([row]), SAMPLED, [seed])[0] for row, seed in ((0, 5), (1, 6), (2, 7))]
    assert [one.codes.tolist() for one in together] == [one.codes.tolist() for one in alone]
    other = model.decode(model.prompts([0]), SAMPLED, [6])[0]
    assert other.codes.tolist() != alone[0].codes.tolist()


def test_a_lower_frame_limit_does_not_change_earlier_frames(model: NanoModels) -> None:
    long, short = (model.decode(model.prompts([0]), SAMPLED, [5], most)[0] for most in (MOST, 3))
    assert short.codes.equal(long.codes[:3]) and not short.ended


def test_decoding_stops_at_the_last_position_of_the_model(model: NanoModels) -> None:
    (prompt,) = model.prompts([1])
    ids = replace(model.decoder.ids, positions=len(prompt) + 4)
    decoder = TalkerDecoder(model.tts.model.talker, ids)
    batch = TalkerBatch(decoder, 1)
    (cut,) = batch.finish([batch.join(prompt, GREEDY, 0, 100)])
    assert len(cut.codes) == 4 and not cut.ended


def test_codes_are_permitted_from_their_frame_on() -> None:
    """As the stock generation's MinNewTokensLength and SuppressTokens."""
    first = decoding.first_permitted_frames(8, suppressed=3, end=6)
    assert first.tolist() == [0, 0, 0, 0, 0, NEVER, decoding.MIN_NEW, NEVER]
    before, scores = torch.zeros(1, 0, dtype=torch.int64), torch.randn(1, 8)
    for frame in range(4):
        theirs = LogitsProcessorList([MinNewTokensLengthLogitsProcessor(0, 2, 6), SuppressTokensLogitsProcessor([5, 7])])(before, scores)
        assert torch.where(first > frame, -torch.inf, scores).equal(theirs)
        before = torch.cat([before, torch.zeros(1, 1, dtype=torch.int64)], 1)
