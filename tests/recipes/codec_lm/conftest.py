"""A trained run and its export, made once for all tests of this folder in all test processes: copy them to change them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from overtone.finetune.exporting import export
from overtone.recipes.codec_lm.families import ORPHEUS, VYVOTTS
from overtone.recipes.codec_lm.model.sequence_layout import SpeechTextProcessor, find_token_ids
from overtone.recipes.language.tokenization.tokenizer import load_tokenizer
from tests.recipes.codec_lm import tiny_models
from tests.shared_folders import share_folder

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def full_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All weights trained until the model has memorized four clips of two speakers."""

    def train(folder: Path) -> None:
        run = tiny_models.trained(folder, tiny_models.FULL, ("data.val", str(folder / "train.jsonl")), ("eval.every", "30"))
        export.export(run, folder / "export")

    return share_folder(tmp_path_factory, "codec_lm", train) / "run"


@pytest.fixture(scope="session")
def exported(full_run: Path) -> Path:
    return full_run.parent / "export"


@pytest.fixture(scope="session")
def voice(exported: Path) -> Iterator[Any]:
    """The loaded export."""
    pytest.importorskip("snac")
    from overtone.recipes.codec_lm.speech_registration import SPEECH

    with closing(SPEECH.inspect(exported).open()) as opened:
        yield opened


@pytest.fixture(scope="session")
def released() -> SpeechTextProcessor:
    """The processor of a tokenizer with the released ids."""
    made = tiny_models.make_tokenizer(tiny_models.RELEASED_SPECIAL, 128_000)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, bos_token=tiny_models.BEGIN, eos_token=tiny_models.END_OF_TEXT)
    return SpeechTextProcessor(tokenizer, ORPHEUS, find_token_ids(tokenizer, ORPHEUS, Path("released")), 131_072)


@pytest.fixture(scope="session")
def released_vyvotts() -> SpeechTextProcessor:
    """The same with the ids of VyvoTTS."""
    made = tiny_models.make_tokenizer(tiny_models.QWEN_SPECIAL, 151_643)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>")
    return SpeechTextProcessor(tokenizer, VYVOTTS, find_token_ids(tokenizer, VYVOTTS, Path("released")), 40_960)


@pytest.fixture
def processor(exported: Path) -> SpeechTextProcessor:
    """The processor of the tiny model."""
    tokenizer = load_tokenizer(exported, None)
    ids = find_token_ids(tokenizer, tiny_models.FAMILY, exported)
    return SpeechTextProcessor(tokenizer, tiny_models.FAMILY, ids, tiny_models.POSITIONS)
