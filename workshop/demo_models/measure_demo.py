"""Measure the WER of a finished demo with several speech recognizers, and on clips in which no word was read wrong.

    python -m workshop.demo_models.measure_demo [runs/demo]… [--asr RECOGNIZER]… [--speaker-model MODEL] [--others 120]
                                                      [--given CODEBOOKS]…

Prints one line of JSON for each demo: WERs in percent of the reported sentences as recordings, as these through the codec, by the base
before training and after it, and as clips with the recordings' codes in the first codebooks and the trained model's in the others
(`generation_with_given_codebooks.py`): --given says in how many, by default in 1 and in 3. `both_wrong`: percent of the words after
training that all recognizers have wrong; these are probably spoken wrong. `other sentences`: so many held-out sentences that are not
reported, by the trained model; the reported ones are few, and their WER differs by points from run to run. `similarity`, with
--speaker-model: mean cosine to the mean vector of the voice's recordings of the other reported sentences.

Needs pocketsphinx unless --asr names other recognizers: pip install 'overtone[align]'.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from overtone.data_prep.audio.waveform import MASTER_RATE, Samples, read_audio
from overtone.data_prep.audio_codecs.qwen3_tts_codec import CODEBOOKS
from overtone.finetune.errors import UserError, catch_user_errors
from overtone.finetune.terminal import print_line
from overtone.recipes.qwen3_tts.inference.exported_folder import ExportedModel
from overtone.recipes.qwen3_tts.inference.synthesizer import Synthesizer, open_synthesizer
from overtone.recipes.speech.evaluation import speaker_similarity
from overtone.recipes.speech.evaluation.evaluation_folder import CLIPS
from overtone.recipes.speech.evaluation.intelligibility import align_words, transcripts_wer
from overtone.recipes.speech.evaluation.scoring import read_clip
from overtone.recipes.speech.evaluation.speaker_similarity import SimilarityEncoder, Vector
from overtone.recipes.speech.evaluation.systems import RECORDINGS, THROUGH_CODEC, slug
from overtone.recipes.speech.interface import SpeechRequest, SpeechSampling
from overtone.recipes.voice_clone.demo import comparison_clips
from overtone.recipes.voice_clone.demo.comparison_clips import AFTER, SPOKEN
from overtone.recipes.voice_clone.demo.pipeline import SPEAKER, find_new_voice
from workshop.demo_models import recognizers
from workshop.demo_models.base import pack_base
from workshop.demo_models.corpus import make_new_voice
from workshop.demo_models.generation_with_given_codebooks import GivenCodesSynthesizer
from workshop.demo_models.recognizers import Transcriber

Spoken = list[tuple[str, Samples]]
UNREPORTED = "other sentences"
OTHERS, BATCH, GIVEN = 120, 8, (1, 3)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="measure_demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("demos", nargs="*", type=Path, default=[Path("runs/demo")], metavar="FOLDER", help="(default runs/demo)")
    recognizers.add_option(parser)
    parser.add_argument("--others", type=int, default=OTHERS, help="other sentences to measure (default %(default)s; 0: none)")
    parser.add_argument(
        "--given",
        type=int,
        action="append",
        default=[],
        metavar="CODEBOOKS",
        help=f"how many codebooks have the recordings' codes; may be repeated (default {' and '.join(map(str, GIVEN))}; 0: none)",
    )
    parser.add_argument("--speaker-model", metavar="MODEL", help="speaker encoder: a folder or name as for eval-voice, or resemblyzer")
    options = parser.parse_args(argv)
    if options.others < 0:
        raise UserError(f"--others {options.others}: must be at least 0")
    if wrong := [count for count in options.given if not 0 <= count <= CODEBOOKS]:
        raise UserError(f"--given {wrong[0]}: must be from 0 to {CODEBOOKS}")
    for demo in options.demos:
        require_finished(demo)
    transcribers = recognizers.load_transcribers(options.asr or pack_base.RECOGNIZERS)
    encoder = speaker_similarity.load_independent_encoder(options.speaker_model) if options.speaker_model else None
    given = [count for count in options.given or GIVEN if count]
    for demo in options.demos:
        print_line(json.dumps({"demo": str(demo), **measure_demo(demo, transcribers, options.others, given, encoder)}))
    return 0


def require_finished(demo: Path) -> None:
    """Raise `UserError` for a folder without the trained voice or without the evaluated clips."""
    if not (demo / "export").is_dir() or not (demo / "evaluation" / CLIPS / slug(THROUGH_CODEC)).is_dir():
        raise UserError(f"{demo} is not a finished demo; run it first: make demo")


def measure_demo(
    demo: Path,
    transcribers: dict[str, Transcriber],
    others: int = OTHERS,
    given: Sequence[int] = GIVEN,
    encoder: SimilarityEncoder | None = None,
) -> dict[str, Any]:
    """WERs in percent by recognizer, for each kind of clip, and of the words after training that all recognizers have wrong; with an
    encoder, similarities, too."""
    clips = comparison_clips.read_clips(demo / "evaluation", find_new_voice())
    spoken: dict[str, Spoken] = {title: [(clip.text, read_clip(clip.path)) for clip in clips[title]] for title in SPOKEN}
    spoken |= {f"given codebooks: {count}": speak_from_given_codes(demo / "export", count) for count in given}
    if others:
        spoken[UNREPORTED] = speak_other_sentences(demo / "export", others)
    transcripts = {
        name: {title: [(text, transcribe(wave)) for text, wave in pairs] for title, pairs in spoken.items()}
        for name, transcribe in transcribers.items()
    }
    wers = {
        name: {title: round(100 * transcripts_wer(pairs, "english"), 1) for title, pairs in own.items()}
        for name, own in transcripts.items()
    }
    similarity = {} if encoder is None else {"similarity": measure_similarity(encoder, spoken)}
    return {**wers, **similarity, "both_wrong": find_both_wrong([own[AFTER] for own in transcripts.values()])}


def measure_similarity(encoder: SimilarityEncoder, spoken: Mapping[str, Spoken]) -> dict[str, float]:
    """Kind of clip → mean cosine to the mean direction of the recordings of other texts; a clip without a vector counts as 0."""
    recordings = {text: find_direction(encoder, wave) for text, wave in spoken[RECORDINGS]}

    def compare(text: str, wave: Samples) -> float:
        direction = find_direction(encoder, wave)
        middle = np.sum([other for own, other in recordings.items() if own != text and other is not None], axis=0)
        return 0.0 if direction is None else float(direction @ middle / np.linalg.norm(middle))

    return {title: round(float(np.mean([compare(*pair) for pair in pairs])), 3) for title, pairs in spoken.items()}


def find_direction(encoder: SimilarityEncoder, wave: Samples) -> Vector | None:
    """The speaker vector [H] of length 1; None for a clip that is too short or silent."""
    vector = speaker_similarity.embed(encoder, wave)
    return None if vector is None else vector / max(float(np.linalg.norm(vector)), 1e-12)


def speak_from_given_codes(export: Path, codebooks: int) -> Spoken:
    """The reported sentences with the codes of their recordings in the first codebooks, each as long as its recording."""
    new_voice = find_new_voice()
    rows = comparison_clips.read_rows(new_voice / "held_out.jsonl")
    recordings = {str(row["text"]): read_audio(new_voice / row["audio"], MASTER_RATE).samples for row in rows}
    spoken = speak(GivenCodesSynthesizer(ExportedModel.inspect(export), recordings, codebooks), list(recordings))
    return [(text, wave[: len(recordings[text])]) for text, wave in spoken]


def speak_other_sentences(export: Path, count: int) -> Spoken:
    """The first `count` of the sentences that settings are compared with, and more of the same kind, by the trained voice."""
    return speak(open_synthesizer(export), make_new_voice.list_choosing_sentences(count=count))


def speak(voice: Synthesizer, texts: Sequence[str]) -> Spoken:
    """The texts in the demo's new voice, a batch at a time; closes the voice."""
    sampling, spoken = SpeechSampling(max_seconds=pack_base.MAX_SECONDS), Spoken()
    with voice:
        for start in range(0, len(texts), BATCH):
            batch = texts[start : start + BATCH]
            results = voice.speak([SpeechRequest(text, SPEAKER) for text in batch], sampling)
            spoken += zip(batch, (result.wave for result in results), strict=True)
    return spoken


def find_both_wrong(transcripts: Sequence[Sequence[tuple[str, str]]]) -> float:
    """Percent of the words that are wrong in the transcripts of all recognizers: each a list of (text, transcript). Inserted words do not
    count."""
    words = wrong = 0
    for pairs in zip(*transcripts, strict=True):
        marks = [[word.wrong for word in align_words(text, transcript, "english") if word.expected] for text, transcript in pairs]
        words += len(marks[0])
        wrong += sum(all(of_word) for of_word in zip(*marks, strict=True))
    return round(100 * wrong / words, 1)


if __name__ == "__main__":
    sys.exit(catch_user_errors(main)(sys.argv[1:]))
