"""Generate clips for the last training of the demo Whisper: codebook 0 of clips of the corpus, and the other 15 codebooks from the base.

    python -m recipes.voice_clone.studio.whisper.generate_clips [--corpus runs/studio/corpus] [--base qwen3-tts-demo-base] [--clips 3000]

Writes `audio/generated/*.flac` and, last, `generated.jsonl` to the corpus: training sentences of the known voices, none of the new voice.
The clips sound like speech of the base, but the words in them are known: they are in the first codes, which are those of the recording.
Speech that the base generates alone has wrong words; a recognizer that was trained on it with the intended texts would not hear them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from data_prep.audio.waveform import MASTER_RATE, Audio, Samples, encode_flac, read_audio
from data_prep.audio_codecs import qwen3_tts_codec
from data_prep.audio_codecs.qwen3_tts_codec import SAMPLES_PER_FRAME as FRAME
from data_prep.audio_codecs.qwen_tts_import import CODEC_FOLDER
from finetune.errors import UserError, exit_code
from finetune.storage import demo_models, files
from recipes.speech.decoding.token_sampling import GREEDY
from recipes.voice_clone.inference import reference_package, waveform_streaming
from recipes.voice_clone.inference.exported_metadata import ExportedModel
from recipes.voice_clone.inference.prompt_embeddings import PromptEmbedder, PromptEmbeddings, VoiceConditioning
from recipes.voice_clone.inference.talker_decoding import DecodingSession, TalkerDecoder
from recipes.voice_clone.model.sequence_layout import tokenize_text
from recipes.voice_clone.studio.base import pack_base
from recipes.voice_clone.studio.corpus import make_corpus

ROWS = "generated.jsonl"
CLIPS = 3000
TASK, BATCH = 256, 16
"""Clips that a worker gets at a time; it generates those of similar length together, a batch at a time."""


class SourceClip(NamedTuple):
    """A clip of the corpus from which one is generated."""

    path: Path
    text: str
    reference: Path
    """A clip of the voice for the speaker vector."""
    shift: int
    """Samples of silence before the clip, less than a frame: recordings start anywhere in the frame grid."""


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="generate_clips", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, default=make_corpus.FOLDER)
    parser.add_argument("--base", default=pack_base.NAME, help="name or folder (default %(default)s)")
    parser.add_argument("--clips", type=int, default=CLIPS, help="clips to generate, at most (default %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="processes, each with one thread (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    if options.clips < 1:
        raise UserError(f"--clips {options.clips}: must be at least 1")
    base = demo_models.folder_of(options.base) if demo_models.is_shipped(options.base) else Path(options.base)
    ExportedModel.read(base)  # before any worker starts
    rows = [row for row in make_corpus.read_corpus(options.corpus) if row["split"] == "train" and not row["new_voice"]]
    chosen = choose_clips(rows, options.corpus, options.clips, options.seed)
    write_clips(options.corpus, chosen, generate_waves(base, [clip for _, clip in chosen], options.workers))
    print(f"{len(chosen)} clips -> {options.corpus / ROWS}")
    return 0


def choose_clips(rows: Sequence[dict[str, Any]], corpus: Path, count: int, seed: int) -> list[tuple[dict[str, Any], SourceClip]]:
    """`count` of the rows in random order, or all, each with a random clip of its voice as reference."""
    random, by_voice = Random(seed), dict[str, list[str]]()
    for row in rows:
        by_voice.setdefault(row["speaker"], []).append(row["audio"])
    return [
        (row, SourceClip(corpus / row["audio"], row["text"], corpus / random.choice(by_voice[row["speaker"]]), random.randrange(FRAME)))
        for row in random.sample(rows, min(count, len(rows)))
    ]


def write_clips(corpus: Path, chosen: Sequence[tuple[dict[str, Any], SourceClip]], waves: Iterator[Samples]) -> None:
    """Write the clips and their rows."""
    rows = []
    for number, ((row, clip), wave) in enumerate(zip(chosen, waves, strict=True), start=1):
        audio = f"audio/generated/{row['speaker']}-{clip.path.stem}.flac"
        files.write_bytes(corpus / audio, encode_flac(Audio(wave, MASTER_RATE)))
        rows.append({**row, "audio": audio})
        if number % TASK == 0:
            print(f"{number} of {len(chosen)} clips generated", file=sys.stderr, flush=True)
    files.write_jsonl(corpus / ROWS, rows)


class GivenFirstCodes(DecodingSession):
    """Generates frames whose codebook 0 is given."""

    def __init__(self, decoder: TalkerDecoder, prompts: Sequence[PromptEmbeddings], first: Sequence[Tensor]) -> None:
        """`first`: codebook 0 [T] of each row."""
        end = decoder.ids.codec_eos
        self.given = pad_sequence([torch.cat([row, row.new_tensor([end])]) for row in first], padding_value=end)
        super().__init__(decoder, prompts, GREEDY, [0] * len(prompts), len(self.given) - 1)

    def choose_first(self, count: Tensor) -> None:
        """Codebook 0 of frame `count` [1]: the given one."""
        self.first.copy_(self.given.index_select(0, count)[0])


def generate_waves(base: Path, clips: Sequence[SourceClip], workers: int) -> Iterator[Samples]:
    """Samples [n] at 24 kHz of each clip, in their order."""
    parts = [clips[start : start + TASK] for start in range(0, len(clips), TASK)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for waves in pool.map(generate_part, parts, [base] * len(parts)):
            yield from waves


def generate_part(clips: Sequence[SourceClip], base: Path) -> list[Samples]:
    """The samples of one part; runs in a worker."""
    loaded = _load_base(base)
    found: dict[int, Samples] = {}
    waves = [_read_shifted(clip) for clip in clips]
    order = sorted(range(len(clips)), key=lambda at: len(waves[at]))
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        vectors = [loaded.encode_voice(clips[at].reference) for at in batch]
        generated = loaded.generate([clips[at].text for at in batch], vectors, [waves[at] for at in batch])
        found.update({at: wave[clips[at].shift :] for at, wave in zip(batch, generated, strict=True)})
    return [found[at] for at in range(len(clips))]


class LoadedBase:
    """Owns a loaded model that speaks English, and its codec."""

    def __init__(self, folder: Path) -> None:
        self.exported = ExportedModel.read(folder)
        self.model: Any = reference_package.load(folder).model
        self.codec = qwen3_tts_codec.load_codec(folder / CODEC_FOLDER, "cpu")
        self.decoder = TalkerDecoder(self.model.talker, self.exported.ids)
        self.embedder = PromptEmbedder(self.model.talker, self.exported.ids)

    def encode_voice(self, reference: Path) -> Tensor:
        """The speaker vector [H] of a clip."""
        vector: Tensor = self.model.extract_speaker_embedding(read_audio(reference, MASTER_RATE).samples, MASTER_RATE)
        return vector

    @torch.inference_mode()
    def generate(self, texts: Sequence[str], vectors: Sequence[Tensor], waves: Sequence[Samples]) -> list[Samples]:
        """A batch with the first codes of `waves` [n], each as long as its wave."""
        codes = [torch.from_numpy(np.asarray(one, dtype=np.int64)) for one in qwen3_tts_codec.encode_clips(self.codec, waves)]
        prompts = [self.embed(text, vector) for text, vector in zip(texts, vectors, strict=True)]
        session = GivenFirstCodes(self.decoder, prompts, [one[:, 0] for one in codes])
        for _ in session.frames():
            pass
        generated = pad_sequence([result.codes for result in session.results()], batch_first=True)
        decoded = waveform_streaming.decode_codes(self.model.speech_tokenizer.model.decoder, generated).numpy()
        return [one[: len(wave)] for one, wave in zip(decoded, waves, strict=True)]

    def embed(self, text: str, vector: Tensor) -> PromptEmbeddings:
        """The prompt for a text in the voice of a speaker vector."""
        english = self.exported.ids.languages["english"]
        return self.embedder.embed(tokenize_text(text, self.exported.processor), english, VoiceConditioning(vector), streamed=False)


@cache
def _load_base(base: Path) -> LoadedBase:
    torch.set_num_threads(1)
    return LoadedBase(base)


def _read_shifted(clip: SourceClip) -> Samples:
    """[shift + n] at 24 kHz."""
    return np.concatenate([np.zeros(clip.shift, np.float32), read_audio(clip.path, MASTER_RATE).samples])


if __name__ == "__main__":
    sys.exit(exit_code(main, sys.argv[1:]))
