"""Datasets from Python: the options of the verbs by name, and what they return. test_api_page.py uses real recordings."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import overtone
from overtone.data_prep.audio_codecs.selection import DEFAULT_MODEL
from overtone.data_prep.chats.column_mapping import ColumnMapping
from overtone.data_prep.chats.row_counts import RowCounts, make_summary
from overtone.data_prep.cli import codes, text, voice
from overtone.data_prep.dataset.duration_accounting import Summary
from overtone.data_prep.parallel.process_pool import StoppedError
from overtone.data_prep.parallel.worker_options import WorkerFlags
from overtone.finetune.addresses import RemoteAddress

SUMMARY = Summary(
    recordings=2,
    input_seconds=70.0,
    kept_seconds=60.5,
    rejected_seconds=2.0,
    non_speech_seconds=7.5,
    clips=18,
    rejected=1,
    rejected_by_reason={"noisy": 1},
    rejected_seconds_by_reason={"noisy": 2.0},
    train=16,
    val=2,
    speakers={"me": 60.5},
    languages={"english": 60.5},
    settings={},
    sources=[],
)


def record_voice(monkeypatch: pytest.MonkeyPatch, prepared: voice.PreparedVoice) -> list[voice.VoiceOptions]:
    seen = list[voice.VoiceOptions]()
    monkeypatch.setattr(voice, "prepare_voice", lambda options: (seen.append(options), prepared)[1])
    return seen


def test_a_voice_is_prepared_with_the_options_of_the_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = record_voice(monkeypatch, voice.PreparedVoice(SUMMARY, ("b.wav",)))
    out = tmp_path / "me"
    found = overtone.prepare_voice("in", out, whisper=Path("small"), speaker="me")
    assert found == overtone.VoiceDataset(
        *(out, out / "train.jsonl", out / "val.jsonl", out / "rejects.jsonl", 18, 60.5, 1, {"me": 60.5}, ("b.wav",), SUMMARY.model_dump())
    )
    assert "settings" not in repr(found), "the summary is long"
    assert seen == [voice.VoiceOptions(Path("in"), out, whisper="small", speaker="me")], "all defaults are those of the verb"
    overtone.prepare_voice(
        *("s3://bucket/in", str(out)),
        transcripts=True,
        speaker_from="folder",
        speakers=2,
        language="en",
        speaker_check="none",
        align="none",
        check_with="small",
        beams=3,
        channels="left",
        preset="clean",
        val_share=0.5,
        target=5.0,
        shortest=2.0,
        longest=9.0,
        allow_synthetic=True,
        device="cpu",
        workers=3,
    )
    assert seen[1] == voice.VoiceOptions(
        RemoteAddress("s3://bucket/in"),
        out,
        transcripts=True,
        speaker_from="folder",
        speakers="2",
        language="en",
        speaker_check="none",
        align="none",
        check_with="small",
        beams=3,
        channels="left",
        preset="clean",
        val_share=0.5,
        target=5.0,
        shortest=2.0,
        longest=9.0,
        allow_synthetic=True,
        flags=WorkerFlags("cpu", 3),
    )
    seen = record_voice(monkeypatch, voice.PreparedVoice(SUMMARY.model_copy(update={"val": 0}), ()))
    assert overtone.prepare_voice("in", out, whisper="small").val is None


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "give either --whisper NAME, which writes the texts, or --transcripts"),
        ({"whisper": "small", "transcripts": True}, "give either --whisper NAME"),
        ({"whisper": "small", "speaker": "me", "diarize": True}, "--speaker, --speaker-from and --diarize exclude each other"),
        ({"whisper": "small", "preset": "clear"}, r"--preset clear: no such choice; did you mean clean\?"),
        ({"whisper": "small", "speaker_from": "name"}, "--speaker-from name: no such choice; choices are folder, transcript"),
        ({"whisper": "small", "channels": "middle"}, "--channels middle: expected auto, left, right, mix, split, or the number"),
        ({"whisper": "small", "device": "tpu"}, r"--device tpu: no such choice; did you mean cpu\?"),
        ({"whisper": "small", "beams": 0}, "--beams 0: must be at least 1"),
        ({"transcripts": True, "beams": 5}, "--beams needs --whisper or --check-with"),
        ({"whisper": "small", "workers": -1}, "--workers -1: expected a number of processes"),
        ({"whisper": "small", "val_share": 1.0}, "--val-share 1.0: expected a share"),
        ({"whisper": "small", "target": 30.0}, "expected 0 < shortest <= target <= longest"),
    ],
)
def test_wrong_arguments_of_a_voice_are_refused(given: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(overtone.UserError, match=message):
        overtone.prepare_voice(tmp_path, tmp_path / "out", **given)  # type: ignore[arg-type]
    assert [*tmp_path.iterdir()] == []


def test_codes_are_added_with_the_options_of_the_verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[codes.CodesOptions]()
    added = codes.AddedCodes(tmp_path, SimpleNamespace(recipe="csm"), 17, 58.5, 1, 9)  # type: ignore[arg-type]
    monkeypatch.setattr(codes, "add_codes", lambda options: (seen.append(options), added)[1])
    for name in ("train.jsonl", "val.jsonl"):
        (tmp_path / name).write_text("{}\n")
    found = overtone.add_codes(tmp_path, DEFAULT_MODEL)
    assert found == overtone.EncodedDataset(tmp_path, "csm", tmp_path / "train.jsonl", tmp_path / "val.jsonl", 17, 58.5, 1, None)
    assert found.settings == {"data.train": tmp_path / "train.jsonl", "data.val": tmp_path / "val.jsonl"}
    (tmp_path / "val.jsonl").write_text("")
    (tmp_path / "train.shifted.jsonl").write_text("{}\n")
    base = str(tmp_path / "base")
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text('{"model_type": "qwen3_tts"}')
    found = overtone.add_codes(tmp_path, Path(base), speaker="me", time_shifts=3, batch_seconds=9.0, device="cpu", workers=0)
    assert found.settings == {"data.train": tmp_path / "train.shifted.jsonl", "model.source": base}
    assert seen == [
        codes.CodesOptions(tmp_path, DEFAULT_MODEL),
        codes.CodesOptions(tmp_path, base, "me", 9.0, 3, WorkerFlags("cpu", 0)),
    ]
    with pytest.raises(overtone.UserError, match="none does not exist; create it with"):
        monkeypatch.undo()
        overtone.add_codes(tmp_path / "none", "codec-demo")


@pytest.mark.parametrize("prepare", [lambda: overtone.prepare_voice("in", "out", whisper="small"), lambda: overtone.add_codes("in", "x")])
def test_a_stop_is_raised_as_an_interrupt(
    prepare: Callable[[], object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(_: object) -> None:
        raise StoppedError("3 of 7 are done")

    monkeypatch.setattr(voice, "prepare_voice", stop)
    monkeypatch.setattr(codes, "add_codes", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare()
    assert "stopped: 3 of 7 are done; completed work is kept" in capsys.readouterr().err


def test_chats_become_rows_and_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "chats.jsonl", tmp_path / "out"
    source.write_text("".join(json.dumps({"frage": f"Question {number}?", "antwort": f"Answer {number}."}) + "\n" for number in range(30)))
    found = overtone.prepare_chats(source, out, columns={"prompt": "frage", "completion": "antwort"}, val_rows=4)
    assert (found.train_rows, found.val_rows, found.rejected_rows, found.summary["read"]) == (26, 4, 0, 30)
    assert found.settings == {"data.train": out / "train.jsonl", "data.val": out / "val.jsonl"} and found.rejects.is_file()
    assert "30 rows read" in capsys.readouterr().out
    assert overtone.write_report(found) == out / "report.html" and (out / "report.html").stat().st_size > 1000
    assert overtone.write_report(str(out), out=tmp_path / "other.html") == tmp_path / "other.html"
    assert overtone.prepare_chats([source], out, columns={"prompt": "frage", "completion": "antwort"}, val_share=0.0).val is None
    for given, message in (
        ({"columns": {"prompt": "question"}}, "which --columns names"),
        ({"columns": {"answr": "x"}}, "no chat format has answr"),
        ({"shape": "sharegbt"}, r"--shape sharegbt: no such choice; did you mean sharegpt\?"),
        ({"val_share": 1.5}, "--val-share 1.5: expected a share"),
        ({"person": "Ann"}, "--as is for chats that WhatsApp exported"),
    ):
        with pytest.raises(overtone.UserError, match=message):
            overtone.prepare_chats(source, tmp_path / "new", **given)  # type: ignore[arg-type]
    with pytest.raises(overtone.UserError, match="none is not a folder; create a dataset"):
        overtone.write_report(tmp_path / "none")


def test_the_defaults_of_chats_are_those_of_the_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[text.ChatsOptions]()
    counts = make_summary(RowCounts(), Counter(), 0.02, None)
    monkeypatch.setattr(text, "prepare_chats", lambda options: (seen.append(options), counts)[1])
    overtone.prepare_chats("a", "out")
    assert text.main(["a", "--out", "out"]) == 0
    assert seen[0] == text.ChatsOptions(["a"], Path("out")) and seen[1] == text.ChatsOptions(["a"], Path("out"), config=[], split=[])
    overtone.prepare_chats(["a", Path("b")], "out", person="Ann", pause_hours=2.0, join_turns=True)
    assert seen[2] == text.ChatsOptions(["a", "b"], Path("out"), person="Ann", pause_hours=2.0, join_turns=True, columns=ColumnMapping())
