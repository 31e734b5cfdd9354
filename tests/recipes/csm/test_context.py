"""Earlier clips as turns before a clip: layout, loss and generation are those of transformers' processor and class, from audio on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import BASE_DISTANCE, BASE_STATES
from overtone.recipes.csm.inference.decoding import CsmBatch, CsmDecoder
from overtone.recipes.csm.model.sampling_settings import SCHEME
from overtone.recipes.csm.options import Options
from overtone.recipes.csm.recipe import RECIPE, describe_context
from overtone.recipes.speech.decoding.token_sampling import make_frame_sampler
from overtone.recipes.speech.interface import SpeechSampling
from tests.recipes.csm.tiny_csm import (
    BOOKS,
    ReadyCsm,
    call_stock,
    export,
    load_stock,
    make_conversation,
    make_ready,
    make_rows,
    means,
    memorize,
)

TURNS = ("options.context_turns", "2")
ALL = ("options.context_loss", "all")
SAMPLES_PER_FRAME = 1920


class SpokenTalk:
    """A conversation as audio, and as rows with the codes that the stock codec makes of it."""

    def __init__(self, stock: Any, clips: int = 6) -> None:
        generator = torch.Generator().manual_seed(0)
        self.rows = make_conversation(["Ann", "Bob"], clips)
        self.audio = [torch.randn(len(row["audio_codes"]) * SAMPLES_PER_FRAME, generator=generator) for row in self.rows]
        for row, audio in zip(self.rows, self.audio, strict=True):
            with torch.no_grad():
                row["audio_codes"] = stock.codec_model.encode(audio[None, None]).audio_codes[0].T.tolist()

    def process(self, ready: ReadyCsm, base: Path, numbers: list[int], **more: Any) -> Any:
        """What the stock processor makes of these clips as one conversation."""
        from transformers import CsmProcessor, EncodecFeatureExtractor

        template = (base / "chat_template.jinja").read_text()
        processor = CsmProcessor(EncodecFeatureExtractor(), ready.loaded.processor.tokenizer, chat_template=template)
        audio = {"type": "audio", "path": "none"}
        turns = [{"role": str(number % 2), "content": [{"type": "text", "text": self.rows[number]["text"]}, audio]} for number in numbers]
        text = processor.apply_chat_template(turns, tokenize=False)
        return processor(text=text, audio=[self.audio[number].numpy() for number in numbers], return_tensors="pt", **more)


@pytest.fixture(scope="module")
def talk(stock: Any) -> SpokenTalk:
    return SpokenTalk(stock)


@pytest.fixture(scope="module")
def ready(talk: SpokenTalk, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> ReadyCsm:
    found = make_ready(tmp_path_factory.mktemp("talk"), tiny, talk.rows, TURNS)
    found.model.eval()
    return found


CONVERSATIONS = [[0], [0, 1], [0, 1, 2], [3], [3, 4], [3, 4, 5]]
"""The clips of each sample with at most two turns of context."""


def test_a_conversation_is_laid_out_as_by_the_stock_processor(ready: ReadyCsm, talk: SpokenTalk, tiny: Path) -> None:
    for sample, numbers in zip(ready.samples, CONVERSATIONS, strict=True):
        stock = talk.process(ready, tiny, numbers, output_labels=True)
        assert sample["ids"].tolist() == stock["input_ids"][0].tolist()
        end = [[0] * BOOKS]
        assert sample["codes"].tolist() == [frame for number in numbers for frame in talk.rows[number]["audio_codes"] + end]
        assert sample["turns"][:, 2].tolist() == [*[0] * (len(numbers) - 1), 1]


def test_the_loss_of_all_turns_from_audio_is_that_of_the_stock_class(talk: SpokenTalk, tiny: Path, stock: Any, tmp_path: Path) -> None:
    """Its labels are those of its processor, which are all frames of all turns."""
    ready = make_ready(tmp_path, tiny, talk.rows, TURNS, ALL)
    for sample, numbers in zip(ready.samples, CONVERSATIONS, strict=True):
        given = talk.process(ready, tiny, numbers, output_labels=True)
        with torch.no_grad():
            theirs = stock(**{name: given[name] for name in ("input_ids", "input_values", "input_values_cutoffs", "labels")})
        ours = means(ready.model, RECIPE.collate([sample]))
        assert ours["backbone"] == pytest.approx(theirs.backbone_loss.item(), abs=2e-6)
        assert ours["depth"] == pytest.approx(theirs.depth_decoder_loss.item(), abs=2e-6)


def test_the_loss_of_the_last_turn_is_that_of_the_stock_class_with_its_labels_alone(ready: ReadyCsm, stock: Any) -> None:
    for sample in ready.samples:
        ours, theirs = means(ready.model, RECIPE.collate([sample])), call_stock(stock, sample)
        assert ours["backbone"] == pytest.approx(theirs.backbone_loss.item(), abs=2e-6)
        assert ours["depth"] == pytest.approx(theirs.depth_decoder_loss.item(), abs=2e-6)


def test_a_batch_of_conversations_is_the_sum_of_its_samples_and_counts_only_what_is_trained(ready: ReadyCsm) -> None:
    with torch.no_grad():
        whole = RECIPE.loss(ready.model, ready.batch)
        parts = [RECIPE.loss(ready.model, RECIPE.collate([sample])) for sample in ready.samples]
    for name, term in whole.items():
        assert term.sum.item() == pytest.approx(sum(part[name].sum.item() for part in parts), rel=1e-6)
    frames = sum(5 + number + 1 for number in range(6))
    assert ready.batch.targets["backbone"] == frames and ready.batch.targets["depth"] == frames * (BOOKS - 1)


def test_the_distance_to_a_base_is_over_the_targets_and_not_over_the_context(talk: SpokenTalk, tiny: Path, tmp_path: Path) -> None:
    ready = make_ready(tmp_path, tiny, talk.rows, TURNS, ("train.base_distance", "0.1"))
    comparison, batch = RECIPE.base_distance, ready.batch
    assert comparison is not None
    with torch.no_grad():
        states = comparison.states(ready.model, batch)
        assert len(states) == batch.targets[comparison.term] < len(batch.tensors["codes"])
        moved = states + 0.1 * torch.randn(states.shape, generator=torch.Generator().manual_seed(0))
        for base_states in (states, moved):
            terms = RECIPE.loss(ready.model, replace(batch, tensors={**batch.tensors, BASE_STATES: base_states}))
            model, base = (functional.linear(each, ready.model.lm_head.weight).log_softmax(-1) for each in (states, base_states))
            expected = float(functional.kl_div(model, base, reduction="sum", log_target=True))
            assert float(terms[BASE_DISTANCE].sum) == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert expected > 0.001


def test_other_codes_in_the_context_change_the_loss(ready: ReadyCsm) -> None:
    sample = ready.samples[2]
    codes = sample["codes"].clone()
    codes[0] = (codes[0] + 1) % 31 + 1
    changed, plain = (means(ready.model, RECIPE.collate([{**sample, "codes": each}])) for each in (codes, sample["codes"]))
    assert changed["backbone"] != plain["backbone"]


def test_a_share_of_the_frames_is_drawn_from_the_trained_ones_and_an_evaluation_is_exact(
    ready: ReadyCsm, talk: SpokenTalk, tiny: Path, tmp_path: Path
) -> None:
    shared = make_ready(tmp_path, tiny, talk.rows, TURNS, ("options.depth_share", "0.3"))
    shared.model.eval()
    assert means(shared.model, shared.batch) == means(ready.model, ready.batch)
    shared.model.train()
    assert means(shared.model, shared.batch)["depth"] != means(ready.model, ready.batch)["depth"]
    assert means(shared.model, shared.batch)["backbone"] == means(ready.model, ready.batch)["backbone"]


@pytest.fixture(scope="module")
def learned_talk(talk: SpokenTalk, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[ReadyCsm, Path]:
    """A model that has memorized the clips in their context, and its export."""
    folder = tmp_path_factory.mktemp("learned-talk")
    ready = make_ready(folder / "data", tiny, talk.rows, TURNS)
    memorize(ready, 200)
    ready.model.eval()
    return ready, export(ready, folder / "export")


def test_the_stock_class_repeats_each_clip_from_the_audio_of_its_context(
    learned_talk: tuple[ReadyCsm, Path], talk: SpokenTalk, tiny: Path
) -> None:
    """Its own processor, codec and greedy `generate`, with the earlier clips as audio."""
    ready, folder = learned_talk
    stock = load_stock(folder)
    for numbers in CONVERSATIONS[1:3]:
        given, own = talk.process(ready, tiny, numbers), talk.rows[numbers[-1]]["audio_codes"]
        ids, cutoffs = given["input_ids"][:, : -len(own) - 1], given["input_values_cutoffs"][:, :-1]
        audio = given["input_values"][..., : int(cutoffs[0, -1])]
        found = stock.generate(
            input_ids=ids, input_values=audio, input_values_cutoffs=cutoffs, do_sample=False, depth_decoder_do_sample=False,
            max_new_tokens=len(own) + 1,
        )[0]  # fmt: skip
        assert found.tolist() == [*own, [0] * BOOKS]


def test_our_generation_repeats_each_clip_in_its_context(learned_talk: tuple[ReadyCsm, Path], talk: SpokenTalk) -> None:
    ready, _ = learned_talk
    decoder, prompts = CsmDecoder(ready.model, ready.loaded.processor.tokens), list[torch.Tensor]()
    for sample in ready.samples:
        text, frames = int(sample["turns"][-1, 0]), int(sample["turns"][-1, 1])
        ids, parts, position, frame = sample["ids"].tolist(), list[torch.Tensor](), 0, 0
        for before, spoken, _ in sample["turns"][:-1].tolist():
            parts += [
                decoder.embed_text(ids[position : position + before]),
                decoder.embed_frames(sample["codes"][frame:][:spoken]),
            ]
            position, frame = position + before + spoken, frame + spoken
        assert position + text + frames == len(ids)
        prompts.append(torch.cat([*parts, decoder.embed_text(ids[position : position + text])]))
    sampler = make_frame_sampler(SCHEME, {"do_sample": False, "depth_decoder_do_sample": False}, SpeechSampling())
    batch = CsmBatch(decoder, len(prompts))
    results = batch.finish([batch.join(prompt.detach(), sampler, 0, 20) for prompt in prompts])
    assert [result.codes.tolist() for result in results] == [row["audio_codes"] for row in talk.rows]


def test_the_log_and_the_card_say_how_much_context_was_trained(ready: ReadyCsm, fresh: ReadyCsm) -> None:
    assert describe_context(fresh.loaded.state) == () == fresh.loaded.remarks
    (line,) = ready.loaded.remarks
    assert line.startswith("context: 4 of 6 training clips follow 1 to 2 earlier clips of their recording, 2.25 s on average")
    card = RECIPE.export(ready.loaded.base, ready.loaded.state, {}, "transformers").files["README.md"].decode()
    assert "turns with 0 to 2 earlier clips" in card and "single turns" not in card


def test_clips_beyond_the_seconds_are_left_out(talk: SpokenTalk, tiny: Path, tmp_path: Path) -> None:
    ready = make_ready(tmp_path, tiny, talk.rows, TURNS, ("options.context_seconds", "2"))
    assert [len(sample["turns"]) for sample in ready.samples] == [1, 2, 2, 1, 2, 2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"source": None}, "all 4 rows: source = None, .*options.context_turns finds the clips before a clip by its recording"),
        ({"start": 3, "end": 3}, "all 4 rows: source = .*, start = 3, end = 3: "),
        ({"start": True}, "all 4 rows: .*start = True"),
        ({"source": "other.wav", "start": 1, "end": 2}, "no clip has an earlier clip of its recording .*raise that, or set --options"),
    ],
)
def test_rows_without_a_place_or_context_are_refused(change: dict[str, Any], message: str, tiny: Path, tmp_path: Path) -> None:
    rows = [{**row, **change} for row in make_rows(["Ann", "Bob"])]
    with pytest.raises(UserError, match=message):
        make_ready(tmp_path, tiny, rows, TURNS)
    make_ready(tmp_path, tiny, rows)  # as without the option


def test_a_conversation_that_is_too_long_for_the_model_says_what_to_lower(tiny: Path, tmp_path: Path) -> None:
    codes = np.random.RandomState(0).randint(1, 31, (1100, BOOKS)).tolist()
    rows = [{**row, "audio_codes": codes} for row in make_conversation(["Ann"], 2)]
    with pytest.raises(UserError, match="2200 frames .*the model has 2048; 1 of its 2 clips are context: lower options.context_seconds"):
        make_ready(tmp_path, tiny, rows, TURNS)


@pytest.mark.parametrize("value", ["-1", "1.5"])
def test_a_number_of_turns_is_a_natural_number(value: str) -> None:
    with pytest.raises(ValueError, match="context_turns"):
        Options.model_validate({"context_turns": value})
