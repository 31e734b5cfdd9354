"""CPU time from audio to text: detected speech, packed and decoded in batches, compared with whisper.transcribe.

`whisper.transcribe` goes through a recording in steps of 30 s, silence included, and decodes one window after the other. data_prep detects
speech first, packs what lies near together into windows of at most 28 s, leaves long pauses out, and decodes 16 windows at a time.
Cutting first and transcribing then, a file for each stretch of speech, is how voice datasets are often made: each pays for 30 s.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

os.environ["NUMBA_NUM_THREADS"] = "1"  # its first parallel loop would give all cores to torch too, which then wait for each other

import numpy as np
import soxr
import torch
import whisper
from whisper.model import ModelDimensions, Whisper
from whisper.tokenizer import get_tokenizer

from overtone.data_prep.audio.waveform import MASTER_RATE, SPEECH_RATE, Audio, Samples, load_track, probe_recording
from overtone.data_prep.segmentation import vad
from overtone.data_prep.transcription import packed_transcription, whisper_engine
from overtone.finetune.storage import demo_models
from workshop.benchmarks import _table

SAMPLE = demo_models.data_folder() / "sample"
RECORDINGS = ("rms/railway.ogg", "rms/workshop.wav", "slt/harbour.flac", "slt/kitchen.mp3")
SIZES = {"demo": (3, 2, 128, 2), "tiny": (4, 4, 384, 6), "small": (12, 12, 768, 12), "large-v3": (32, 32, 1280, 20)}
"""Layers of encoder and decoder, width, heads: one that can be trained on a CPU, and openai-whisper's own. The largest is for a GPU."""
MINUTES = {"demo": 10.0, "tiny": 3.0, "small": 1.5}
"""Minutes of a recording: long ones fill batches of 16, and small takes minutes of processor time for each of sound."""
PAUSES = {"0.2 to 0.4 s": (0.2, 0.4), "1 to 8 s": (1.0, 8.0)}
SPOKEN_TOKENS = 3.5
"""Tokens in a second of speech: about what English has."""
COLUMNS = (
    "size",
    "pauses",
    "recording",
    "windows",
    "tokens",
    "transcribe, text only",
    "transcribe, with word times",
    "a file each, with word times",
    "data_prep, with word times",
    "transcribe / data_prep",
    "a file each / data_prep",
)
NOTE = (
    "Windows and tokens: of whisper.transcribe / of data_prep. A file each: whisper.transcribe of each stretch of speech by itself. The "
    "ratios are of what has word times. Times are processor seconds of one thread on a CPU, fp32, from samples at "
    "16 kHz to text; those of data_prep hold the detection of speech. whisper.transcribe ran at temperature 0 and without the text before: "
    "with its defaults it takes longer. The weights are random, because none that are trained come with this repository: so both ways "
    "decode the same number of tokens, about as many as speech has; their texts are not compared."
)


def main() -> None:
    flags = _table.read_flags(__doc__)
    torch.set_num_threads(1)
    sizes = {"demo": 0.6} if flags.quick else MINUTES
    detector = vad.load_vad()
    rows = []
    for size, minutes in sizes.items():
        model = random_weights(size)
        compare(model, detector, recording(0.2, PAUSES["0.2 to 0.4 s"]))  # the first call compiles what aligns the words
        rows += [[size, name, *compare(model, detector, recording(minutes, pauses))] for name, pauses in PAUSES.items()]
    _table.publish("transcribe_speed", flags, COLUMNS, rows, NOTE)


def recording(minutes: float, pauses: tuple[float, float]) -> Audio:
    """The stretches of speech of the embedded sample, one after another, with pauses of the given seconds on the noise of a room."""
    chance, detector = np.random.default_rng(0), vad.load_vad()
    stretches = [stretch for name in RECORDINGS for stretch in make_speech(SAMPLE / name, detector)]
    pieces: list[Samples] = []
    while sum(map(len, pieces)) < minutes * 60 * MASTER_RATE:
        pause = np.zeros(int(chance.uniform(*pauses) * MASTER_RATE), np.float32)
        pieces += [stretches[len(pieces) // 2 % len(stretches)], pause]
    sound = np.concatenate(pieces)
    return Audio(sound + 1e-4 * chance.standard_normal(len(sound), np.float32), MASTER_RATE)


def make_speech(path: Path, detector: Any) -> list[Samples]:
    """Return the speech that the detector finds in a file, without the pauses."""
    (master,) = load_track(path, probe_recording(path), MASTER_RATE)
    return [master.samples[region.start : region.stop] for region in vad.find_speech(detector, make_whisper(master), len(master.samples))]


def make_whisper(master: Audio) -> Audio:
    return Audio(soxr.resample(master.samples, MASTER_RATE, SPEECH_RATE), SPEECH_RATE)


def random_weights(size: str) -> Whisper:
    """A model of Whisper's size that outputs at each position what `force_tokens` sets. Its layers compute as usual, in vain."""
    torch.manual_seed(0)
    listening, speaking, width, heads = SIZES[size]
    mels, vocabulary = (128, 51866) if size == "large-v3" else (80, 51865)
    model = Whisper(ModelDimensions(mels, 1500, width, heads, listening, vocabulary, 448, width, heads, speaking))
    for name, value in model.decoder.blocks.named_parameters():
        if name.split(".", 1)[1].startswith(("attn.out", "cross_attn.out", "mlp.2")):
            value.data.zero_()
    return model.eval()


def force_tokens(model: Whisper, tokens: int) -> None:
    """Make the model output `tokens` tokens, of which the first and the last are timestamps of a window, and then further ones."""
    tokenizer = get_tokenizer(True, num_languages=model.num_languages, language="en")
    words = tokenizer.encode(" There is no end to what it says" * 60)
    start, end = tokenizer.timestamp_begin, tokenizer.timestamp_begin + 1400
    says = [tokenizer.to_language_token("en"), tokenizer.transcribe, start, *words[: tokens - 2], end, *words][: model.dims.n_text_ctx]
    model.decoder.positional_embedding.data = 10 * model.decoder.token_embedding.weight.data[says]


def compare(model: Whisper, detector: Any, master: Audio) -> list[str]:
    """The cells of a row behind its name."""
    sound = make_whisper(master)
    regions = vad.find_speech(detector, sound, len(master.samples))
    packed = packed_transcription.pack_windows(vad.make_windows(regions, master))
    steps = math.ceil(sound.seconds / whisper.audio.CHUNK_LENGTH)
    tokens = count_tokens(regions)
    force_tokens(model, each := round(tokens / steps))
    text, words = (processor_seconds(lambda timed=timed: stock(model, sound, each, timed)) for timed in (False, True))
    stretches = [Audio(sound.samples[region.start * 2 // 3 : region.stop * 2 // 3], SPEECH_RATE) for region in regions]  # 24 to 16 kHz
    files = sum(one_file(model, stretch) for stretch in stretches)
    limit_tokens(model, packed, tokens)
    mine = processor_seconds(lambda: ours(model, detector, master, sound))
    times = [f"{seconds:.1f} s" for seconds in (text, words, files, mine)]
    ratios = [f"{seconds / mine:.1f}" for seconds in (words, files)]
    return [f"{sound.seconds:.0f} s", f"{steps} / {len(packed)}", f"{each * steps} / {tokens}", *times, *ratios]


def count_tokens(regions: list[vad.Region]) -> int:
    return round(SPOKEN_TOKENS * sum(region.seconds for region in regions))


def limit_tokens(model: Whisper, packed: list[packed_transcription.Pack], tokens: int) -> None:
    """Make data_prep end the texts of a model that never ends one: `tokens` in all packs together."""
    packed_transcription.TOKENS_AT_LEAST = 0
    packed_transcription.TOKENS_PER_SECOND = tokens / sum(one.seconds for pack in packed for one in pack)
    force_tokens(model, model.dims.n_text_ctx)


def one_file(model: Whisper, stretch: Audio) -> float:
    """Processor seconds for a stretch of speech in its own file."""
    force_tokens(model, tokens := max(3, round(SPOKEN_TOKENS * stretch.seconds)))
    return processor_seconds(lambda: stock(model, stretch, tokens, True))


def stock(model: Whisper, sound: Audio, tokens: int, timed: bool) -> None:
    """whisper.transcribe with `tokens` in each of its windows, with a time for each word or without."""
    found = whisper.transcribe(
        model,
        sound.samples,
        language="en",
        temperature=0.0,
        condition_on_previous_text=False,
        sample_len=tokens,
        word_timestamps=timed,
        fp16=False,
    )
    if len(found["segments"]) != math.ceil(sound.seconds / whisper.audio.CHUNK_LENGTH):
        raise SystemExit("whisper.transcribe took more or fewer windows than it was to take: times of different work say nothing")


def ours(model: Whisper, detector: Any, master: Audio, sound: Audio) -> None:
    """From sound to words, as data_prep goes; a model that never ends is not called again."""
    whisper_engine.FALLBACK_TEMPERATURES = ()
    units = whisper_engine.transcribe_recording(
        model, sound, vad.make_windows(vad.find_speech(detector, sound, len(master.samples)), master), "english"
    )
    if not units or any(unit.heard is None or unit.heard.complete for unit in units):
        raise SystemExit("the model failed or ended a text by itself: times of different work say nothing")


def processor_seconds(act: Callable[[], None]) -> float:
    """Return the processor seconds of this process, so that other work on the machine is not counted."""
    began = time.process_time()
    act()
    return time.process_time() - began


if __name__ == "__main__":
    main()
