"""The judge of a run: which models judge its clips, checked before they are loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

from overtone.data_prep.speakers import resemblyzer_encoder
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from overtone.recipes.speech.evaluation import evaluation_items, intelligibility, speaker_similarity
from overtone.recipes.speech.evaluation.evaluation_items import Item
from overtone.recipes.speech.preferences.speech_judge import SpeechJudge, load_judge

from .options import ClipJudge

RECORDINGS, ENCODER = "options.judge.recordings", "options.judge.speaker_model"


def check_judge(judge: ClipJudge, speakers: Collection[str]) -> list[Item]:
    """Return the recordings. Raises `UserError` for a speaker without one, for a Whisper model that does not exist, and for an encoder that
    is not installed."""
    if judge.recordings is None:
        raise UserError(
            f"{RECORDINGS} is not set: similarity and pace compare with recordings of the voice; give a JSONL with some, as "
            f"--{RECORDINGS} data/me/val.jsonl"
        )
    items = evaluation_items.read_items(judge.recordings, None, None, lambda _: None)
    recorded = {item.speaker for item in items if item.recording is not None}
    if missing := sorted({*speakers} - recorded):
        raise UserError(f"{RECORDINGS}: {judge.recordings} has no recording of {', '.join(missing)}; add rows with audio")
    intelligibility.check_whisper(judge.asr, "options.judge.asr")
    if judge.speaker_model == resemblyzer_encoder.NAME and resemblyzer_encoder.find_weights() is None:
        raise UserError(f"{ENCODER}: {judge.speaker_model} is not installed; run: {resemblyzer_encoder.INSTALL}")
    return items


def digest_judge(judge: ClipJudge, recordings: Collection[Item]) -> dict[str, str]:
    """Return what the rewards depend on besides their weights, by the keys of `ClipJudge`: files by content, the encoder by name."""
    assert judge.recordings is not None
    clips = {item.recording for item in recordings if item.recording is not None}
    contents = [files.digest(judge.recordings), *(files.digest(path) for path in sorted(clips))]
    return {
        "recordings": hashlib.sha256("".join(contents).encode()).hexdigest()[:16],
        "asr": intelligibility.digest_whisper(judge.asr)[:16],
        "speaker_model": Path(judge.speaker_model).name,
    }


def open_judge(judge: ClipJudge) -> SpeechJudge:
    """Load the models of a judge that `check_judge` has accepted, and measure the recordings. Raises `UserError`."""
    assert judge.recordings is not None
    items = evaluation_items.read_items(judge.recordings, None, None, lambda _: None)
    try:
        encoder = speaker_similarity.load_independent_encoder(judge.speaker_model)
    except UserError as error:
        raise UserError(str(error).replace("--speaker-model", ENCODER)) from None
    return load_judge(items, (), encoder, judge.asr)


def check_text(judge: SpeechJudge, item: Item, where: str) -> None:
    """Raises `UserError`, with file and line of the row, for a text that the judge cannot judge."""
    try:
        intelligibility.require_languages(judge.asr, [item.language])
        judge.check(item)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
