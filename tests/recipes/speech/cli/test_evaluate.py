"""Tests of `overtone.recipes.speech.cli.evaluate`: from rows and a model to the three result files, and refusals before a model is
loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard

from overtone.data_prep.speakers import resemblyzer_encoder
from overtone.finetune import __main__ as verbs
from overtone.recipes.qwen3_tts.generate_command import QwenVoiceFolder
from overtone.recipes.speech.cli.evaluate import read_options
from overtone.recipes.speech.cli.evaluation_arguments import parse
from overtone.recipes.speech.evaluation.systems import RECORDINGS, THROUGH_CODEC
from overtone.recipes.speech.evaluation.voice_evaluation import make_plan
from overtone.recipes.voice_clone import speech_registration
from tests.data_prep.page import Page
from tests.recipes.voice_clone.conftest import write_corpus

ROWS = (
    {"text": "She counted the boats.", "speaker": "Anna", "language": "english", "audio": "high.flac", "ref_audio": "high.flac"},
    {"text": "It is never late!", "speaker": "Bert", "language": "english", "audio": "low.flac", "ref_audio": "low.flac"},
)
NEW = {"text": "A word.", "speaker": "Bert", "ref_audio": "low.flac"}
Voice = Callable[..., list[str]]


@pytest.fixture(scope="module")
def voice(fresh: Any, export: Any, nano: Path, tmp_path_factory: pytest.TempPathFactory) -> Voice:
    """Makes the command line that evaluates an export of the untrained model on given rows."""
    folder = tmp_path_factory.mktemp("voice")
    model = export(fresh, "custom_voice", folder / "me")

    def command(out: Path, *rows: dict[str, Any]) -> list[str]:
        out.mkdir()
        corpus = write_corpus(out / "data", list(rows))
        brief = ["--max-seconds", "0.4", "--out", str(out / "evaluation")]
        return ["eval-voice", "--model", str(model), "--recipe", "voice_clone", "--data", str(corpus.train), *brief]

    return command


def test_rows_are_evaluated_into_three_files(
    voice: Voice, nano: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = voice(tmp_path / "all", *ROWS, {**NEW, "text": f"{NEW['text']} 🙂"})
    monkeypatch.setattr(resemblyzer_encoder, "find_weights", lambda: None)
    seen = write_corpus(tmp_path / "seen", [ROWS[0], {**ROWS[0], "text": "Boats, boats."}]).train
    assert verbs.main([*command, "--base", str(nano), "--codec", str(nano), "--seen", str(seen)]) == 0
    out = tmp_path / "all" / "evaluation"
    assert {path.name for path in out.iterdir()} == {"clips", "evaluation.html", "evaluation.json", "evaluation.md"}
    found = json.loads((out / "evaluation.json").read_text())
    assert list(found["figures"]) == [RECORDINGS, THROUGH_CODEC, "me", "nano, zero-shot"] and found["settings"]["codec"] == str(nano)
    assert [found["figures"][name]["unseen"]["texts"] for name in (RECORDINGS, THROUGH_CODEC)] == [1, 1]
    assert found["figures"]["me"]["unseen"]["texts"] == 2 and found["figures"]["me"]["seen"]["texts"] == 2, "one of --data, one of --seen"
    assert set(found["similarity"]) == {"own encoder"}, "no artefact in place of an independent encoder that is not installed"
    assert found["similarity"]["own encoder"]["another speaker"] < 1
    assert len(list((out / "clips").rglob("*.flac"))) == 8 + 3
    assert {row["base"] for row in found["compared"]} == {"nano, zero-shot"}
    notes = "\n".join(found["notes"])
    assert (
        "no --asr was given" in notes
        and "1 of 4 texts have no recording" in notes
        and "Similarity by an independent encoder was not measured: run `pip install" in notes
        and "1 text with parts that nobody speaks, which are dropped: " in notes
    )
    assert len(Page((out / "evaluation.html").read_text()).all("audio")) == 3 + 3 + 4 + 4
    assert "| me | 2 |" in (out / "evaluation.md").read_text()
    shown = capsys.readouterr().out
    assert "me: 4 of 4 texts spoken" in shown and "through the codec: 3 of 3 recordings decoded" in shown
    assert "(1 emoji)." in shown


def test_an_installed_encoder_is_the_default(voice: Voice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = voice(tmp_path / "default", *ROWS[:1])
    model, rest = Path(command[2]), command[5:]
    monkeypatch.setattr(resemblyzer_encoder, "find_weights", lambda: tmp_path / "pretrained.pt")
    plan = make_plan(speech_registration.SPEECH, model, read_options(parse(rest)))
    assert plan.speaker_model == "resemblyzer" and not [note for note in plan.notes if "independent encoder" in note]
    named = make_plan(speech_registration.SPEECH, model, read_options(parse([*rest, "--speaker-model", "my/model"])))
    assert named.speaker_model == "my/model"


def test_an_evaluation_replaces_an_incomplete_one(voice: Voice, tmp_path: Path) -> None:
    command = voice(tmp_path / "twice", *ROWS[:1])
    out = tmp_path / "twice" / "evaluation"
    (out / "clips" / "old").mkdir(parents=True)
    (out / "export-100").mkdir()
    (out / "clips" / "old" / "1.flac").touch()
    assert verbs.main([*command, "--card"]) == 0
    card = ModelCard((Path(command[2]) / "README.md").read_text()).data
    assert card.model_name == "me" and card.eval_results is not None and card.pipeline_tag == "text-to-speech"
    found = {one.metric_type: one.metric_value for one in card.eval_results if one.dataset_name == "train.jsonl, all texts"}
    assert found == {"clipping": 0.0, "runaways": 100.0}
    assert not (out / "clips" / "old").exists() and not (out / "export-100").exists()
    assert json.loads((out / "evaluation.json").read_text())["clips"]
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert verbs.main(command) == 2, "a complete one stays"
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("row", "more", "message"),
    [
        ({"text": ""}, (), "train.jsonl:2: the row has no text to speak"),
        ({"speaker": "zed"}, (), "train.jsonl:2: --speaker zed: "),
        ({"language": "dutch"}, (), "train.jsonl:2: language 'dutch' is not known to this model"),
        ({"audio": "gone.flac"}, (), "train.jsonl:2: audio gone.flac: no such file"),
        ({"ref_audio": None}, ("--base", "NANO"), "train.jsonl:2: the row has no reference audio to clone from"),
        ({"audio": "train.jsonl"}, (), "cannot be used"),
        ({}, ("--asr", "enormous"), "--asr enormous: neither a file nor one of"),
        ({}, ("--checkpoints", "all"), "is one exported model"),
        ({}, ("--batch", "0"), "--batch 0: must be at least 1"),
        ({}, ("--limit", "0"), "--limit 0: must be at least 1"),
        ({}, ("--max-seconds", "0"), "--max-seconds 0: must be more than 0"),
        ({}, ("--reference", "gone.wav"), "--reference gone.wav: no such file"),
        ({}, ("--base", "HERE"), "no model"),
        ({}, ("--codec", "HERE"), "--codec "),
        ({}, ("--out", "HERE"), "contains files that are not of an evaluation"),
    ],
)
def test_bad_input_is_refused_before_a_model_is_loaded(
    voice: Voice,
    nano: Path,
    tmp_path: Path,
    row: dict[str, Any],
    more: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    loaded: list[Any] = []
    monkeypatch.setattr(QwenVoiceFolder, "open", loaded.append)
    places = {"NANO": str(nano), "HERE": str(tmp_path)}
    command = voice(tmp_path / "bad", ROWS[0], {**ROWS[1], **row})
    assert verbs.main([*command, *(places.get(word, word) for word in more)]) == 2
    assert message in capsys.readouterr().err and not loaded and not (tmp_path / "bad" / "evaluation").exists()


def test_a_codec_needs_recordings(voice: Voice, nano: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verbs.main([*voice(tmp_path / "without", NEW), "--codec", str(nano)]) == 2
    assert f"--codec {nano}: no row of " in capsys.readouterr().err


def test_help_names_every_option(voice: Voice, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        verbs.main([*voice(tmp_path / "help", ROWS[0]), "--help"])
    shown = capsys.readouterr().out
    assert all(option in shown for option in ("--asr", "--base", "--seen", "--checkpoints", "--speaker-model", "--reference"))


# --- a run that memorizes its clips, from its first checkpoint to the evaluation


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_speaks_samples_during_training_and_is_evaluated_afterwards(nano: Path, rows_of: Any, tmp_path: Path) -> None:
    from dataclasses import replace

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from overtone.finetune.distributed.process_group import join, leave
    from overtone.finetune.monitoring.run_records import read_log
    from overtone.finetune.training import run
    from overtone.recipes.voice_clone.recipe import RECIPE

    rows = rows_of({"Anna": "high.flac", "Bert": "low.flac"}, ("english", "english"))
    corpus = write_corpus(tmp_path / "data", rows)
    settings = {
        "train.precision": "fp32",
        "train.lr": "1e-2",
        "train.beta2": "0.98",
        "train.weight_decay": "0",
        "train.steps": "300",
        "train.global_batch_tokens": "200",
        "train.micro_tokens": "200",
        "sample.every": "150",
        "sample.prompts": "['It is never late!', 'bert|She counted the boats.']",
    }
    config = corpus.config(nano, *settings.items())
    world = join((), tmp_path)
    tracked = replace(world, accelerator=type(world.accelerator)(cpu=True, log_with="tensorboard", project_dir=str(config.run.dir)))
    assert run.train(tracked, config, RECIPE) == "finished"
    leave()
    sampled = [event for event in read_log(config.run.dir / "log.jsonl") if event["event"] == "sampled"]
    assert sampled[-1]["step"] == 300 and sampled[-1]["answers"][1]["answer"].startswith("bert, ")
    assert all((config.run.dir / answer["sound"]).is_file() for event in sampled for answer in event["answers"])
    board = EventAccumulator(str(config.run.dir / "tracking"))
    board.Reload()
    assert board.Audio("samples/2")[-1].step == 300 and board.Images("samples/2")[-1].step == 300
    assert board.Scalars("samples/seconds")[-1].step == 300

    for row in rows:  # compare the voice with what the learned codes decode to
        row["ref_audio"] = row["audio"]
    (tmp_path / "data" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--checkpoints", "all", "--base", str(nano), "--greedy", "--max-seconds", "3", "--out", str(tmp_path / "out")]
    command = ["eval-voice", "--model", str(config.run.dir), "--data", str(corpus.train), "--seen", str(corpus.train), *options]
    assert verbs.main(command) == 0
    found = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    steps = [name for name in found["figures"] if name.startswith("step ")]
    assert len(steps) >= 2 and steps[-1] == "step 300"
    last = found["figures"]["step 300"]["seen"]
    learned = sum(len(row["audio_codes"]) for row in rows) / 12.5
    assert last["runaways"] == 0 and last["texts"] == 4 and last["duration_ratio"] == pytest.approx(learned / 4.0, rel=0.05)
    page = Page((tmp_path / "out" / "evaluation.html").read_text())
    assert page.all("svg") and not [path for path in (tmp_path / "out").iterdir() if path.name.startswith("export")]


@pytest.mark.slow
def test_transcripts_and_an_independent_encoder_are_used(
    voice: Voice, babbler: Path, tiny_speaker_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With an untrained Whisper: all clips are transcribed, also the recordings, and each figure is computed over all clips."""
    options = ["--asr", str(babbler), "--speaker-model", str(tiny_speaker_model)]
    assert verbs.main([*voice(tmp_path / "scored", *ROWS), *options]) == 0
    assert f"WER and CER are by the transcripts of {babbler.name}.\n" in capsys.readouterr().out
    found = json.loads((tmp_path / "scored" / "evaluation" / "evaluation.json").read_text())
    clips = [clip for clip in found["clips"] if clip["system"] == "me"]
    assert len(clips) == 2 and all(clip["heard"] for clip in clips)
    wrong, words = (sum(clip["errors"][key] for clip in clips) for key in ("wrong_words", "words"))
    assert words == 8 and found["figures"]["me"]["all"]["wer"] == pytest.approx(100 * wrong / words)
    assert found["figures"][RECORDINGS]["all"]["wer"] > 0
    assert f"WER and CER are by the transcripts of {babbler.name}." in found["notes"]
    assert "tiny-sv" in found["similarity"] and not [note for note in found["notes"] if "independent encoder" in note]
