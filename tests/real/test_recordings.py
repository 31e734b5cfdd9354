"""Real speech with exact texts: what `overtone voice` makes of it with both engines of Whisper, which wrong texts `--check-with` finds, and
what `eval-voice --asr` measures. Figures are printed at the end of the tests.

The speech is that of Debian's telephone prompts: apt-get install asterisk-core-sounds-en asterisk-core-sounds-en-g722.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import soundfile

from overtone.data_prep.cli import voice
from overtone.finetune import __main__ as verbs
from overtone.finetune.exporting import export
from overtone.recipes.speech.evaluation.systems import RECORDINGS
from tests.data_prep.telephone_prompts import RATE, Prompt, PromptRecording, format_subtitles, join_prompts
from tests.real.word_error_counts import WordErrors, count_word_errors, find_kept_prompts, read_clips
from tests.recipes.codec_lm import tiny_models

pytestmark = pytest.mark.slow
TALKS, PROMPTS = 2, 45
EVALUATED = 12
ENGINES = ("openai-whisper", "faster-whisper")
ALWAYS = ("--language", "en", "--workers", "0", "--device", "cpu", "--speaker", "allison", "--val-share", "0")


@pytest.fixture(scope="module")
def talks(prompts: list[Prompt]) -> dict[str, PromptRecording]:
    """By file name."""
    return {f"talk{at}.wav": join_prompts(prompts[at * PROMPTS : (at + 1) * PROMPTS], seed=at) for at in range(TALKS)}


@pytest.fixture(scope="module")
def folder(talks: dict[str, PromptRecording], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recordings, without transcripts."""
    made = tmp_path_factory.mktemp("talks")
    for name, talk in talks.items():
        soundfile.write(made / name, talk.samples, RATE)
    return made


@pytest.fixture(scope="module")
def whispers(whisper_file: Path, whisper_folder: Path) -> dict[str, str]:
    """Engine → the name of its model for `--whisper` and `--asr`."""
    return dict(zip(ENGINES, (str(whisper_file), f"faster-whisper:{whisper_folder}"), strict=True))


@pytest.fixture(scope="module")
def reference_texts(talks: dict[str, PromptRecording], whisper_file: Path) -> dict[str, str]:
    """What `whisper.transcribe` makes of each recording."""
    import whisper

    model = whisper.load_model(str(whisper_file), device="cpu")
    return {name: whisper.transcribe(model, talk.samples, language="en", fp16=False)["text"] for name, talk in talks.items()}


def sum_errors(counts: Sequence[WordErrors]) -> WordErrors:
    return WordErrors(sum(one.errors for one in counts), sum(one.words for one in counts))


@pytest.mark.parametrize(("engine", "beams"), [("openai-whisper", 1), ("openai-whisper", 5), ("faster-whisper", 5)])
def test_kept_words_have_no_more_errors_than_those_of_whisper(
    engine: str,
    beams: int,
    talks: dict[str, PromptRecording],
    folder: Path,
    reference_texts: dict[str, str],
    whispers: dict[str, str],
    tmp_path: Path,
    figures: list[str],
) -> None:
    assert voice.main([str(folder), "--out", str(tmp_path / "out"), "--whisper", whispers[engine], "--beams", str(beams), *ALWAYS]) == 0
    ours, theirs = list[WordErrors](), list[WordErrors]()
    for recording, talk in talks.items():
        clips = [row for row in read_clips(tmp_path / "out") if row["source"] == recording]
        kept = find_kept_prompts(talk.cues, clips)
        ours.append(count_word_errors(talk.cues, " ".join(str(row["text"]) for row in clips), kept))
        theirs.append(count_word_errors(talk.cues, reference_texts[recording], kept))
    own, reference = sum_errors(ours), sum_errors(theirs)
    spoken = sum(count_word_errors(talk.cues, "", range(len(talk.cues))).words for talk in talks.values())
    figures.append(
        f"{engine}, --beams {beams}: {own.errors} errors in {own.words} kept words of {spoken}; whisper.transcribe has {reference.errors}"
    )
    assert own.words > 0.9 * spoken
    assert own.errors <= reference.errors + 0.01 * own.words
    assert own.errors < 0.1 * own.words


def find_other_text(text: str, texts: Sequence[str]) -> str:
    """The text of the most similar length that shares at most a third of its words."""
    words = set(text.lower().split())
    return min((one for one in texts if 3 * len(words & set(one.lower().split())) <= len(words)), key=lambda one: abs(len(one) - len(text)))


def test_texts_that_are_not_spoken_are_contradicted(
    talks: dict[str, PromptRecording], folder: Path, whisper_file: Path, tmp_path: Path, figures: list[str]
) -> None:
    """About every ninth cue has the text of another prompt, which shares few of its words and is about as long. Single words keep their
    text: in a clip with another cue they are a small part of the words, and the limit of the check is half of them."""
    (tmp_path / "in").mkdir()
    wrong = dict[str, set[int]]()
    for name, talk in talks.items():
        wrong[name] = {at for at in range(4, len(talk.cues), 9) if len(talk.cues[at].text.split()) >= 3}
        written = [
            replace(cue, text=find_other_text(cue.text, [one.text for one in talk.cues])) if at in wrong[name] else cue
            for at, cue in enumerate(talk.cues)
        ]
        (tmp_path / "in" / name).symlink_to(folder / name)
        (tmp_path / "in" / name).with_suffix(".srt").write_text(format_subtitles(tuple(written)))
    given = ["--transcripts", "--check-with", str(whisper_file), *ALWAYS]
    assert voice.main([str(tmp_path / "in"), "--out", str(tmp_path / "out"), *given]) == 0
    wrong_kept = right_kept = 0
    for name, talk in talks.items():
        kept = find_kept_prompts(talk.cues, [row for row in read_clips(tmp_path / "out") if row["source"] == name])
        wrong_kept, right_kept = wrong_kept + len(kept & wrong[name]), right_kept + len(kept - wrong[name])
    planted = sum(map(len, wrong.values()))
    right = sum(len(talk.cues) for talk in talks.values()) - planted
    figures.append(f"--check-with: {wrong_kept} of {planted} wrong texts kept, {right - right_kept} of {right} right ones lost")
    assert planted >= 6 and wrong_kept == 0
    assert right_kept >= 0.9 * right


@pytest.fixture(scope="module")
def untrained_voice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export that speaks noise."""
    return export.export(
        tiny_models.trained(tmp_path_factory.mktemp("voice"), ("train.steps", "1")), tmp_path_factory.mktemp("voices") / "me"
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_an_evaluation_knows_speech_from_noise(
    engine: str, untrained_voice: Path, talks: dict[str, PromptRecording], whispers: dict[str, str], tmp_path: Path, figures: list[str]
) -> None:
    talk, rows = next(iter(talks.values())), []
    for at, cue in enumerate(talk.cues[:EVALUATED]):
        soundfile.write(tmp_path / f"{at}.wav", talk.samples[int(cue.start * RATE) : int(cue.end * RATE)], RATE)
        rows.append({"text": cue.text, "speaker": "ann", "language": "english", "audio": f"{at}.wav"})
    data = tiny_models.write_rows(tmp_path / "rows.jsonl", rows)
    given = ["--recipe", "codec_lm", "--data", str(data), "--out", str(tmp_path / "evaluation"), "--max-seconds", "0.1"]
    assert verbs.main(["eval-voice", "--model", str(untrained_voice), "--asr", whispers[engine], *given]) == 0
    found = json.loads((tmp_path / "evaluation" / "evaluation.json").read_text())["figures"]
    speech, noise = (found[name]["all"]["wer"] for name in (RECORDINGS, untrained_voice.name))
    figures.append(f"eval-voice --asr with {engine}: WER {speech:.1f} % of {EVALUATED} recordings, {noise:.1f} % of an untrained voice")
    assert speech < 15 and noise > 80
