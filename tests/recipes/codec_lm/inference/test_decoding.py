"""Tests of `overtone.recipes.codec_lm.inference.decoding`: the tokens of stock generation, token for token, and three times as
fast."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from overtone.finetune.errors import UserError
from overtone.recipes.codec_lm.inference.decoding import SpeechTokenBatch, SpeechTokenDecoder, TokenSampler
from overtone.recipes.codec_lm.inference.exported_folder import ExportedSpeechTokens
from overtone.recipes.speech.decoding.continuous_batching import DecodedCodes
from tests.recipes.codec_lm import tiny_models

GREEDY = TokenSampler(greedy=True)
ROWS = tiny_models.make_rows()


class Opened:
    """An export for the decoder here, and the same for stock generation."""

    def __init__(self, folder: Path) -> None:
        self.exported = ExportedSpeechTokens.inspect(folder)
        self.ids = self.exported.processor.ids
        self.stock = AutoModelForCausalLM.from_pretrained(folder).eval()
        self.decoder = SpeechTokenDecoder(AutoModelForCausalLM.from_pretrained(folder).eval(), self.ids)
        self.prompts = [self.exported.make_prompt(row["text"], row["speaker"]) for row in ROWS]
        self.greedy_stock = [self.stock_tokens(row) for row in range(len(ROWS))]

    def run(self, sampler: TokenSampler, rows: list[int], frames: int = 20, seed: int = 0) -> list[DecodedCodes]:
        batch = SpeechTokenBatch(self.decoder, len(rows))
        return batch.finish([batch.join(self.prompts[row], sampler, seed, frames) for row in rows])

    def speak(self, *given: Any, **options: Any) -> list[list[list[int]]]:
        return [one.codes.tolist() for one in self.run(*given, **options)]

    def stock_tokens(self, row: int, **options: Any) -> list[int]:
        prompt = torch.tensor([self.prompts[row]])
        given = {"do_sample": False, "repetition_penalty": 1.0, "temperature": None, "top_p": None, "max_new_tokens": 140, **options}
        found = self.stock.generate(prompt, attention_mask=torch.ones_like(prompt), pad_token_id=0, **given)
        tokens: list[int] = found[0, prompt.shape[1] :].tolist()
        return tokens


@pytest.fixture(scope="module")
def opened(exported: Path) -> Opened:
    return Opened(exported)


@pytest.mark.parametrize("constrained", [True, False])
def test_greedy_tokens_are_those_of_stock_generation(constrained: bool, opened: Opened) -> None:
    for row in range(len(ROWS)):
        *tokens, end = opened.greedy_stock[row]
        assert end == opened.ids.end_of_speech and len(tokens) % 7 == 0, "the stock output is well-formed"
        (codes,) = opened.speak(TokenSampler(greedy=True, constrained=constrained), [row])
        assert opened.ids.encode_frames(torch.tensor(codes)).tolist() == tokens


def run_to_a_stray_token(opened: Opened, row: int, penalty: float) -> torch.Tensor:
    """Codes [T, codebooks] up to the end or the limit, or with the frame in which a token is no code."""
    batch, codes = SpeechTokenBatch(opened.decoder, 1), list[torch.Tensor]()
    batch.join(opened.prompts[row], TokenSampler(greedy=True, repetition_penalty=penalty, constrained=False), 0, 20)
    try:
        while found := batch.step():
            codes += [frame.codes for frame in found.values() if frame.codes is not None]
    except UserError:
        codes.append(batch.codes[0])
    return torch.stack(codes)


def test_a_repetition_penalty_is_that_of_stock_generation(opened: Opened) -> None:
    """Up to the first token that is no code of its slot, and in some rows it has changed what is chosen before that."""
    changed = 0
    for row in range(len(ROWS)):
        for penalty in (2.0, 3.0, 5.0):
            stock = opened.stock_tokens(row, repetition_penalty=penalty)
            well_formed = [token in opened.decoder.token_ids[place % 7] for place, token in enumerate(stock)]
            valid = stock[: [*well_formed, False].index(False)]
            changed += valid != opened.greedy_stock[row][: len(valid)]
            chosen = opened.ids.encode_frames(run_to_a_stray_token(opened, row, penalty)).tolist()
            assert [*chosen, opened.ids.end_of_speech][: len(valid)] == valid if stock == valid else chosen[: len(valid)] == valid
    assert changed


def test_rows_of_a_batch_are_those_alone(opened: Opened) -> None:
    sampler = TokenSampler(greedy=False, temperature=1.5, repetition_penalty=1.1)
    alone = [opened.speak(sampler, [row], seed=7)[0] for row in range(len(ROWS))]
    assert opened.speak(sampler, list(range(len(ROWS))), seed=7) == alone
    assert opened.speak(sampler, [0], seed=8) != alone[:1]


def test_constrained_choices_are_codes_of_their_slot_whatever_the_model_says(opened: Opened) -> None:
    for seed in range(3):
        for one in opened.run(TokenSampler(greedy=False, temperature=50.0), [0, 1], seed=seed):
            assert one.codes.min() >= 0 and one.codes.max() < tiny_models.SIZE


def test_a_sequence_without_the_constraint_that_is_not_well_formed_is_an_error(opened: Opened) -> None:
    with pytest.raises(UserError, match=r"the model produced token \d+ where a code was expected; remove the option"):
        opened.run(TokenSampler(greedy=False, temperature=50.0, constrained=False), [0])


def test_a_running_request_is_not_blamed_for_the_token_of_another(opened: Opened) -> None:
    """A prompt without its end is followed by a token that is no code. Its row leaves; the other one has chosen only codes."""
    batch, sampler = SpeechTokenBatch(opened.decoder, 2), TokenSampler(greedy=True, constrained=False)
    batch.join(opened.prompts[0], sampler, 0, 20)
    batch.leave(batch.join(opened.prompts[1][:3], sampler, 1, 20))
    (spoken,) = batch.finish([0])
    assert spoken.codes.tolist() == opened.speak(sampler, [0])[0]
    batch.join(opened.prompts[1][:3], sampler, 1, 20)
    with pytest.raises(UserError, match="where a code was expected"):
        batch.step()


def test_speech_that_does_not_end_is_cut_off(opened: Opened) -> None:
    (result,) = opened.run(GREEDY, [0], frames=3)
    assert len(result.codes) == 3 and not result.ended
    (whole,) = opened.run(GREEDY, [0])
    assert whole.ended and len(whole.codes) == len(ROWS[0]["audio_codes"])


def test_the_positions_of_the_model_limit_the_frames(opened: Opened) -> None:
    batch = EndlessBatch(opened.decoder, 1)
    (cut,) = batch.finish([batch.join(opened.prompts[0], GREEDY, 0, 10_000)])
    assert len(cut.codes) == (tiny_models.POSITIONS - len(opened.prompts[0])) // 7


def test_another_architecture_is_refused(opened: Opened) -> None:
    model = LlamaForCausalLM(LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1))
    model.config.model_type = "granite"
    with pytest.raises(UserError, match="generation with a granite is not supported; supported: llama, qwen3"):
        SpeechTokenDecoder(model, opened.ids)


class EndlessBatch(SpeechTokenBatch):
    """One that does not stop at the end of speech."""

    @property
    def ended(self) -> torch.Tensor:
        return torch.zeros_like(self.first, dtype=torch.bool)

    def find_ends(self, codes: torch.Tensor) -> torch.Tensor:
        return torch.zeros(codes.shape[:-1], dtype=torch.bool)


@pytest.mark.slow
def test_decoding_is_three_times_as_fast_as_stock_generation(opened: Opened) -> None:
    """The best of several runs of each, in turns, so that other load on the machine falls on both."""
    frames, took = 26, {"stock": list[float](), "here": list[float]()}
    for _ in range(7):
        began = time.perf_counter()
        tokens = opened.stock_tokens(1, min_new_tokens=7 * frames, max_new_tokens=7 * frames)
        middle = time.perf_counter()
        batch = EndlessBatch(opened.decoder, 1)
        (spoken,) = batch.finish([batch.join(opened.prompts[1], GREEDY, 0, frames)])
        took["stock"].append(middle - began)
        took["here"].append(time.perf_counter() - middle)
    assert len(tokens) == spoken.codes.numel() == 7 * frames
    ratio = min(took["stock"]) / min(took["here"])
    print(f"{len(tokens)} tokens: stock {min(took['stock']):.4f} s, here {min(took['here']):.4f} s, {ratio:.1f} times as fast")
    assert ratio >= 3, "the benchmark measures 4.2"
