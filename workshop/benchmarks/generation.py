"""Speech by the stock qwen_tts package and by our decoder, on the same checkpoint: frames per second, real-time factor, first audio.

Greedy, so that both say the same codes, which is checked first. Frames a second are of the codes alone; the real-time factor and the first
sound go from the text to the wave. The stock package has no stream: its first sound is its last.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from overtone.finetune.storage import files
from overtone.recipes.qwen3_tts.inference import stock_qwen_tts
from overtone.recipes.qwen3_tts.inference.decoding import TalkerBatch, TalkerDecoder
from overtone.recipes.qwen3_tts.inference.prompt_embeddings import PromptEmbedder, VoiceConditioning
from overtone.recipes.qwen3_tts.inference.synthesizer import Request, Synthesizer, open_synthesizer
from overtone.recipes.qwen3_tts.model import sequence_layout
from overtone.recipes.qwen3_tts.model.config_factory import FRAME_RATE, RELEASED, make_model_config
from overtone.recipes.qwen3_tts.model.sampling_settings import SamplingSettings
from overtone.recipes.qwen3_tts.model.sequence_layout import SpeechProcessor, TokenIds
from overtone.recipes.speech.decoding.token_sampling import CodeSampler, FrameSampler
from overtone.recipes.voice_clone.model import tiny_checkpoint
from workshop.benchmarks import _table, _timing

COLUMNS = (
    *("model", "texts at once", "frames / s, stock", "frames / s, here", "here / stock"),
    *("real-time factor, stock", "real-time factor, here", "first sound, s, stock", "first sound, s, here"),
)
NOTE = (
    "Random weights, fp32, greedy; processor seconds of one process on one thread of a CPU, medians of runs in turns. nano and mini are "
    "the checkpoints of the tests, {frames} frames of each text; 0.6B has the released shape (with a small text vocabulary, which is only "
    "looked up) and speaks {large} frames: there the weights of a frame have to come through memory, whoever asks for them. Real-time "
    "factor: seconds of work for a second of sound, with a codec that is as small as the model; first sound: of one text alone."
)
TEXT = "She counted the boats in the harbour and wrote the number down."
Codes = list[list[list[int]]]
GREEDY = FrameSampler(CodeSampler(greedy=True), CodeSampler(greedy=True))


def main() -> None:
    flags = _table.read_flags(__doc__)
    torch.set_num_threads(1)
    frames, large, rounds = (6, 2, 1) if flags.quick else (25, 4, 5)
    with tempfile.TemporaryDirectory() as folder:
        sizes = [("nano", 1)] if flags.quick else [("nano", 1), ("nano", 8), ("mini", 1), ("mini", 8)]
        rows = [small_model(Path(folder), size, texts, frames, rounds) for size, texts in sizes]
    if not flags.quick:
        rows.append(released_shape(large, rounds=3))
    _table.publish("generation", flags, COLUMNS, rows, NOTE.format(frames=frames, large=large))


def small_model(folder: Path, size: str, texts: int, frames: int, rounds: int) -> list[object]:
    """One line of the table, of a checkpoint that is small enough for its codec to matter too."""
    base = folder / size if (folder / size).exists() else tiny_checkpoint.build(folder / size, size)
    tts, voice = stock_qwen_tts.load(base), open_synthesizer(add_named_speaker(base))
    variants = codes_of(tts.model, voice.exported.processor, texts, frames)
    request, sampling = Request(TEXT, "ann"), SamplingSettings(greedy=True, max_seconds=frames / FRAME_RATE)
    waves = {"stock": partial(stock_wave, tts, texts, frames), "here": partial(voice.speak, [request] * texts, sampling)}
    first = {"stock": partial(stock_wave, tts, 1, frames), "here": partial(first_chunk, voice, request, sampling)}
    whole, soon = _timing.medians(waves, rounds), _timing.medians(first, rounds)
    spoken = texts * frames / FRAME_RATE
    factors = [f"{whole[way] / spoken:.3f}" for way in ("stock", "here")]
    return [size, texts, *speeds(variants, texts * frames, rounds), *factors, *(f"{soon[way]:.3f}" for way in ("stock", "here"))]


def released_shape(frames: int, rounds: int) -> list[object]:
    """The line of the 0.6B model: codes alone, since its codec is no other work than before."""
    from qwen_tts.core.models import Qwen3TTSConfig, Qwen3TTSForConditionalGeneration

    tokenizer = tiny_checkpoint.train_text_tokenizer()
    shape = make_model_config(RELEASED["0.6B"], tiny_checkpoint.find_text_ids(tokenizer))
    model = Qwen3TTSForConditionalGeneration(Qwen3TTSConfig(**shape)).eval()
    processor = SpeechProcessor(lambda text: {"input_ids": tokenizer.encode(text).ids}, TokenIds.from_config(shape), {})
    return ["0.6B", 1, *speeds(codes_of(model, processor, 1, frames), frames, rounds), "", "", "", ""]


def speeds(variants: dict[str, Callable[[], Codes]], frames: int, rounds: int) -> list[str]:
    """Frames a second of both and their ratio, after a look at whether they are the same frames."""
    if variants["stock"]() != variants["here"]():
        raise SystemExit("the two say different codes, so their times say nothing")
    taken = _timing.medians(variants, rounds)
    return [f"{frames / taken['stock']:.1f}", f"{frames / taken['here']:.1f}", f"{taken['stock'] / taken['here']:.1f}"]


def codes_of(model: Any, processor: SpeechProcessor, texts: int, frames: int) -> dict[str, Callable[[], Codes]]:
    """The same texts as codes: by the stock loop, and by the one here."""
    tokens, device = processor.tokenizer(sequence_layout.format_prompt(TEXT))["input_ids"], model.talker.codec_head.weight.device
    vector = torch.zeros(model.talker.config.hidden_size, device=device)
    voices = {"ref_code": None, "ref_spk_embedding": [vector] * texts, "x_vector_only_mode": [True] * texts, "icl_mode": [False] * texts}

    def theirs() -> Codes:
        inputs = {"input_ids": [torch.tensor([tokens], device=device)] * texts, "languages": ["auto"] * texts, "voice_clone_prompt": voices}
        codes, _ = model.generate(**inputs, non_streaming_mode=True, max_new_tokens=frames + 1, **stock_qwen_tts.GREEDY)
        return [one.tolist() for one in codes]

    decoder, embedder = TalkerDecoder(model.talker, processor.ids), PromptEmbedder(model.talker, processor.ids)

    @torch.inference_mode()
    def ours() -> Codes:
        prompt = embedder.embed(tokens[: -sequence_layout.TAIL], None, VoiceConditioning(vector), streamed=False)
        batch = TalkerBatch(decoder, texts)
        return [one.codes.tolist() for one in batch.finish([batch.join(prompt, GREEDY, 0, frames) for _ in range(texts)])]

    return {"stock": theirs, "here": ours}


def stock_wave(tts: Any, texts: int, frames: int) -> None:
    voices = [stock_qwen_tts.make_stored_voice_prompt(tts, 0)] * texts
    inputs = {"text": [TEXT] * texts, "language": ["auto"] * texts, "voice_clone_prompt": voices}
    tts.generate_voice_clone(**inputs, non_streaming_mode=True, max_new_tokens=frames + 1, **stock_qwen_tts.GREEDY)


def first_chunk(voice: Synthesizer, request: Request, sampling: SamplingSettings) -> None:
    next(voice.stream(request, sampling))


def add_named_speaker(base: Path) -> Path:
    """The base with a speaker in its config, as an export has."""
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    config["talker_config"]["spk_id"] = {"ann": 0}
    files.write_json(base / "config.json", config)
    return base


if __name__ == "__main__":
    main()
