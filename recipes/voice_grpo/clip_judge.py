"""The judge of a run: which models judge its clips, checked before they are loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

from overtone.data_prep import manifest
from overtone.data_prep.speakers import resemblyzer_encoder
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from overtone.recipes.speech.evaluation import evaluation_items, intelligibility, speaker_similarity
from overtone.recipes.speech.evaluation.evaluation_items import Item
from overtone.recipes.speech.preferences.speech_judge import SpeechJudge, load_judge

from .options import ClipJudge

RECORDINGS, ENCODER = "options.judge.recordings", "options.judge.speaker_model"


def require_recordings(judge: ClipJudge) -> Path:
    """Return the file of recordings. Raises `UserError` if it is not set."""
    if judge.recordings is None:
        raise UserError(
            f"{RECORDINGS} is not set: similarity and pace compare with recordings of the voice; give a JSONL with some, as "
            f"--{RECORDINGS} data/me/val.jsonl"
        )
    return judge.recordings


def read_recordings(judge: ClipJudge, speakers: Collection[str]) -> list[Item]:
    """Return the recordings. Raises `UserError` for a speaker without one."""
    items = evaluation_items.read_items(require_recordings(judge), None, None, lambda _: None)
    recorded = {item.speaker for item in items if item.recording is not None}
    if missing := sorted({*speakers} - recorded):
        raise UserError(f"{RECORDINGS}: {judge.recordings} has no recording of {', '.join(missing)}; add rows with audio")
    return items


def check_models(judge: ClipJudge) -> None:
    """Download the Whisper model, on one process: several would write the same file. Raises `UserError` if it does not exist, and for an
    encoder that is not installed or not one."""
    require_recordings(judge)
    intelligibility.check_whisper(judge.asr, "options.judge.asr")
    if judge.speaker_model == resemblyzer_encoder.NAME and resemblyzer_encoder.find_weights() is None:
        raise UserError(f"{ENCODER}: {judge.speaker_model} is not installed; run: {resemblyzer_encoder.INSTALL}")
    digest_encoder(judge)


def digest_encoder(judge: ClipJudge) -> str:
    """Return what tells the encoder from others. Raises `UserError` if it is not one."""
    try:
        return speaker_similarity.digest_independent_encoder(judge.speaker_model)
    except UserError as error:
        raise UserError(str(error).replace("--speaker-model", ENCODER)) from None


def digest_judge(judge: ClipJudge, recordings: Collection[Item]) -> dict[str, str]:
    """Return what the rewards depend on besides their weights, by the keys of `ClipJudge`: files and models by content; and the name of the
    encoder. A reference clip moves the similarity too."""
    clips = {path for item in recordings for path in (item.recording, item.reference) if path is not None}
    contents = [files.digest(require_recordings(judge)), *(files.digest(path) for path in sorted(clips))]
    return {
        "recordings": hashlib.sha256("".join(contents).encode()).hexdigest()[:16],
        "asr": intelligibility.digest_whisper(judge.asr)[:16],
        "speaker_model": digest_encoder(judge)[:16],
        "speaker_model_name": Path(judge.speaker_model).name,
    }


def open_judge(judge: ClipJudge, speakers: Collection[str], languages: Collection[str]) -> SpeechJudge:
    """Load the models of a judge that `check_models` has accepted, and measure the recordings. Raises `UserError` for a language of the
    texts that the Whisper model does not support, and for a speaker whose recordings are all too short or silent."""
    items = read_recordings(judge, speakers)
    encoder = speaker_similarity.load_independent_encoder(judge.speaker_model)
    try:
        opened = load_judge(items, languages, encoder, judge.asr)
    except UserError as error:
        raise UserError(str(error).replace("--language", f"options.judge.asr: {judge.asr}: a text in")) from None
    for speaker in speakers:
        opened.check(Item("any text", "word", speaker, manifest.AUTO))
    return opened


def check_text(judge: SpeechJudge, item: Item, where: str) -> None:
    """Raises `UserError`, with file and line of the row, for a text that the judge cannot judge."""
    try:
        intelligibility.require_languages(judge.asr, [item.language])
        judge.check(item)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
