"""Code for code what the stock loop says, penalty and padding included; alone as in a batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from recipes.voice_clone.inference import reference_package
from recipes.voice_clone.inference.exported_model import Exported
from recipes.voice_clone.inference.prompt_embeddings import Prompt, Prompter, Voice
from recipes.voice_clone.inference.talker_decoding import Decoder, Said, Speech
from recipes.voice_clone.model.sequence_layout import text_tokens
from recipes.voice_clone.model.token_sampling import GREEDY, Choice, Choices

TEXTS = ("Please close the window, the rain comes in over the books.", "Hi.", "It is late!")
LANGUAGES = ("english", "auto", "german")
SAMPLED = Choice(False, 0.9, 50, 0.95, 1.05)
MOST = 12


class Nano:
    """The untrained nano, in the stock package and in ours, with three made-up voices."""

    def __init__(self, folder: Path) -> None:
        self.tts, self.exported = reference_package.load(folder), Exported.of(folder)
        self.voices = torch.randn(3, 32, generator=torch.Generator().manual_seed(0))
        self.decoder = Decoder(self.tts.model.talker, self.exported.ids)

    def stock(self, rows: list[int], streamed: bool, penalty: float) -> list[list[list[int]]]:
        from qwen_tts.inference.qwen3_tts_model import VoiceClonePromptItem

        voices = [VoiceClonePromptItem(None, self.voices[row], True, False) for row in rows]
        codes, _ = self.tts.model.generate(
            input_ids=self.tts._tokenize_texts([self.tts._build_assistant_text(TEXTS[row]) for row in rows]),
            languages=[LANGUAGES[row] for row in rows],
            voice_clone_prompt=self.tts._prompt_items_to_voice_clone_prompt(voices),
            non_streaming_mode=not streamed,
            max_new_tokens=MOST + 1,
            **reference_package.GREEDY | {"repetition_penalty": penalty},
        )
        return [one.tolist() for one in codes]

    @torch.no_grad()
    def prompts(self, rows: list[int], streamed: bool = False) -> list[Prompt]:
        prompter, ids = Prompter(self.tts.model.talker, self.exported.ids), self.exported.ids
        tokens = [text_tokens(TEXTS[row], self.exported.processor) for row in rows]
        voices = [Voice(self.voices[row]) for row in rows]
        languages = [ids.languages.get(LANGUAGES[row]) for row in rows]
        return [prompter.prompt(*one, streamed) for one in zip(tokens, languages, voices, strict=True)]

    def said(self, prompts: list[Prompt], choice: Choice, seeds: list[int], most: int = MOST) -> list[Said]:
        speech = Speech(self.decoder, prompts, Choices(choice, choice), seeds, most)
        assert list(speech.frames()) == list(range(1, speech.spoken + 1))
        return speech.result()


@pytest.fixture(scope="module")
def model(nano: Path) -> Nano:
    return Nano(nano)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("rows", "penalty"), [([0], 1.0), ([2], 1.3), ([0, 1, 2], 1.0), ([0, 1, 2], 1.3)])
def test_greedy_codes_are_the_stock_loops(model: Nano, rows: list[int], penalty: float, streamed: bool) -> None:
    expected = model.stock(rows, streamed, penalty)
    found = model.said(model.prompts(rows, streamed), Choice(True, repetition_penalty=penalty), [0] * len(rows))
    assert [one.codes.tolist() for one in found] == expected
    assert [one.ended for one in found] == [len(codes) < MOST for codes in expected]


def test_sampled_rows_do_not_know_their_neighbours(model: Nano) -> None:
    together = model.said(model.prompts([0, 1, 2]), SAMPLED, [5, 6, 7])
    alone = [model.said(model.prompts([row]), SAMPLED, [seed])[0] for row, seed in ((0, 5), (1, 6), (2, 7))]
    assert [one.codes.tolist() for one in together] == [one.codes.tolist() for one in alone]
    other = model.said(model.prompts([0]), SAMPLED, [6])[0]
    assert other.codes.tolist() != alone[0].codes.tolist()


def test_cutting_off_earlier_changes_nothing_before(model: Nano) -> None:
    long, short = (model.said(model.prompts([0]), SAMPLED, [5], most)[0] for most in (MOST, 3))
    assert short.codes.equal(long.codes[:3]) and not short.ended


def test_the_positions_of_the_model_end_it(model: Nano) -> None:
    (prompt,) = model.prompts([1])
    ids = replace(model.decoder.ids, positions=len(prompt.before) + 4)
    decoder = Decoder(model.tts.model.talker, ids)
    speech = Speech(decoder, [prompt], GREEDY, [0], 100)
    assert [len(piece) for piece in speech.pieces(iter([3, 9]))] == [3, 1] and not speech.result()[0].ended


def test_a_row_ends_before_its_end_of_speech_code_while_others_continue() -> None:
    end = 9
    codes = torch.tensor([[[1, 2], [3, 4]], [[end, 5], [6, 7]], [[end, 5], [8, 0]]])  # [frames, rows, codebooks]
    speech = SimpleNamespace(
        codes=codes, spoken=3, ended=torch.tensor([True, False]), decoder=SimpleNamespace(ids=SimpleNamespace(codec_eos=end))
    )
    short, long = Speech.result(speech)  # type: ignore[arg-type]  # it reads only these attributes
    assert (short.codes.tolist(), short.ended) == ([[1, 2]], True)
    assert (long.codes.tolist(), long.ended) == ([[3, 4], [6, 7], [8, 0]], False)
