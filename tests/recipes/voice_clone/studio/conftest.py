"""A corpus that needs no synthesiser: sentences of the grammar said by noise."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import soundfile

from recipes.voice_clone.studio.grammar import sentences, words_of
from recipes.voice_clone.studio.voices import RATE, VOICES


@pytest.fixture(scope="session")
def noise_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sentences to train and one held out by each voice, 0.8 s each."""
    folder, random = tmp_path_factory.mktemp("corpus"), np.random.default_rng(0)
    texts = {"train": sentences(0, "train"), "held_out": sentences(0, "held_out")}
    rows = []
    for voice in VOICES:
        for split, count in (("train", 2), ("held_out", 1)):
            for number, text in enumerate(islice(texts[split], count)):
                path = folder / f"{voice.name}-{split}-{number}.flac"
                soundfile.write(path, 0.1 * random.standard_normal(int(0.8 * RATE)), RATE)
                rows.append({"audio": path.name, "text": text, "speaker": voice.name, "split": split, "new_voice": voice is VOICES[-1]})
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "lexicon.json").write_text(json.dumps({word: list(word) for row in rows for word in words_of(row["text"])}))
    return folder
