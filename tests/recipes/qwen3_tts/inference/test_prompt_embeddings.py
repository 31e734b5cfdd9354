"""Prompts equal the training layout. test_synthesizer compares speech generated from them with the stock package."""

from __future__ import annotations

from typing import Any

import torch

from overtone.recipes.qwen3_tts.inference.prompt_embeddings import PromptEmbedder, VoiceConditioning
from overtone.recipes.qwen3_tts.model import sequence_layout
from overtone.recipes.qwen3_tts.model.modeling import input_embeddings


@torch.no_grad()
def test_the_whole_text_prompt_equals_the_training_input(fresh: Any) -> None:
    talker, ids = fresh.model.talker, fresh.loaded.processor.ids
    embedder = PromptEmbedder(talker, ids)
    for row, sample in zip(
        ({"text": "She counted the boats.", "language": 2}, {"text": "It is never late!", "language": None}), (0, 1), strict=True
    ):
        trained = sequence_layout.collate([fresh.samples[sample]]).tensors
        frames = embedder.embed_frames(trained["codes"][trained["frame_mask"]])
        expected = input_embeddings(talker, fresh.model.speaker_vectors, trained, frames[:, None])[0]
        text = sequence_layout.tokenize_text(row["text"], fresh.loaded.processor)
        language = None if row["language"] is None else ids.languages["english"]
        prompt = embedder.embed(text, language, VoiceConditioning(fresh.model.speaker_vectors[trained["speaker"][0]]), streamed=False)
        torch.testing.assert_close(prompt.before, expected[: len(prompt.before)], atol=1e-5, rtol=1e-5)
        assert len(prompt.before) == int(trained["frame_mask"][0].int().argmax())
        torch.testing.assert_close(expected[len(prompt.before)], frames[0] + prompt.beside[0], atol=1e-5, rtol=1e-5)
