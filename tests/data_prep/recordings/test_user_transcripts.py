"""Which transcript belongs to which recording, in every form, and messages about broken ones."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest

from data_prep.recordings.user_transcripts import find_transcript, find_transcripts
from finetune.errors import UserError

TIMED = [{"start": 0.5, "end": 2.0, "text": "First."}, {"start": 2.5, "end": 4.0, "text": " Second. "}]


def texts(folder: Path, *, language: str = "english") -> list[str]:
    transcript = find_transcript(folder / "talk.wav")
    assert transcript is not None
    return [unit.text for unit in transcript.make_units(240_000, language)]


@pytest.mark.parametrize("name", ["talk.transcript.json", "talk.json"])
def test_timed_utterances_are_read(name, tmp_path) -> None:
    (tmp_path / name).write_text(json.dumps(TIMED))
    transcript = find_transcript(tmp_path / "talk.wav")
    units = transcript.make_units(240_000, "english")
    assert [(unit.text, unit.start, unit.stop) for unit in units] == [(" First.", 12_000, 48_000), (" Second.", 60_000, 96_000)]
    assert [unit.text for unit in transcript.make_units(240_000, "chinese")] == ["First.", "Second."]


def test_a_text_file_is_the_transcript_of_a_whole_recording(tmp_path) -> None:
    (tmp_path / "talk.txt").write_text("\ufeffOne  line\nand another.\n", encoding="utf-8")
    assert texts(tmp_path) == ["One line and another."]


@pytest.mark.parametrize(("line", "text"), [("talk|Plain.", "Plain."), ("talk|Dr. A.|Doctor A.", "Doctor A.")])
def test_metadata_csv_is_found_beside_the_clips_or_above_wavs(line, text, tmp_path) -> None:
    (tmp_path / "metadata.csv").write_text(f"other|x\n{line}\n\n")
    assert texts(tmp_path) == [text]
    for name in ("wavs", "wav"):
        (tmp_path / name).mkdir()
        assert texts(tmp_path / name) == [text]
    (tmp_path / "takes").mkdir()
    assert find_transcript(tmp_path / "takes" / "talk.wav") is None
    assert find_transcript(tmp_path / "absent.wav") is None


def test_timed_transcripts_take_precedence_over_plain_text(tmp_path) -> None:
    (tmp_path / "talk.transcript.json").write_text(json.dumps(TIMED))
    (tmp_path / "talk.txt").write_text("ignored")
    assert texts(tmp_path) == [" First.", " Second."]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("talk.json", "[{]", "talk.json:1: not JSON"),
        ("talk.json", '{"start": 0}', "talk.json: top level"),
        ("talk.json", "[]", "has no utterance"),
        ("talk.json", '[{"start": 0, "end": 1}]', "talk.json: 0.text"),
        ("talk.json", '[{"start": -1, "end": 1, "text": "a"}]', "talk.json: 0.start"),
        ("talk.json", '[{"start": NaN, "end": 1, "text": "a"}]', "talk.json: unusable JSON (NaN is not JSON"),
        ("talk.json", '[{"start": 2, "end": 1, "text": "a"}]', "talk.json: 0: end 1.0 is not after start 2.0"),
        ("talk.json", '[{"start": 2, "end": 3, "text": "a"}, {"start": 1, "end": 2, "text": "b"}]', "talk.json: 1: starts at 1.0"),
        ("talk.txt", " \n", "talk.txt is empty"),
        ("talk.txt", "\x81 \xfe", "talk.txt is not UTF-8"),
        ("metadata.csv", "talk", "metadata.csv:1: expected id|text"),
        ("metadata.csv", "a|b\ntalk|", "metadata.csv:2"),
        ("metadata.csv", "a|b\na|c", "metadata.csv:2: 'a' is also in line 1 with another text"),
    ],
)
def test_a_broken_transcript_names_its_place(name, content, message, tmp_path) -> None:
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError) as caught:
        find_transcript(tmp_path / "talk.wav")
    assert message in str(caught.value)
    assert str(tmp_path) in str(caught.value)


SRT = "1\n00:00:00,500 --> 00:00:02,000\nFirst.\n\n2\n00:00:02,500 --> 00:00:04,000\n[music]\n"


@pytest.mark.parametrize("name", ["talk.srt", "talk.en.srt", "talk.pt-BR.srt", "talk.SRT"])
def test_subtitles(name, tmp_path) -> None:
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + SRT.replace("\n", "\r\n").encode())
    found = find_transcripts([tmp_path / "talk.wav"])
    units = found.by_recording[tmp_path / "talk.wav"].make_units(240_000, "english")
    assert [(unit.text, unit.start, unit.stop) for unit in units] == [(" First.", 12_000, 48_000)]
    assert found.notes == [f"{tmp_path / name}: 1 cues without speech, such as [music], are ignored"]


def test_subtitles_in_several_languages_are_refused(tmp_path) -> None:
    (tmp_path / "talk.en.srt").write_text(SRT)
    (tmp_path / "talk.de.srt").write_text(SRT)
    with pytest.raises(UserError, match=r"several languages \(talk.de.srt, talk.en.srt\); keep only"):
        find_transcript(tmp_path / "talk.wav")
    (tmp_path / "talk.fr-orig.srt").write_text(SRT.replace("First", "Premier"))
    (tmp_path / "talk.info.json").write_text("{}")
    found = find_transcripts([tmp_path / "talk.wav"])
    assert found.by_recording[tmp_path / "talk.wav"].utterances[0].text == "Premier." and "info" not in str(found.unused)
    (tmp_path / "talk.fr-orig.srt").unlink()
    (tmp_path / "talk.srt").write_text(SRT)
    assert texts(tmp_path) == [" First."]


@pytest.mark.parametrize("name", ["talk.lab", "talk.txt"])
def test_a_label_track_is_distinguished_from_a_text(name, tmp_path) -> None:
    (tmp_path / name).write_text("0.5\t2.0\tFirst.\n2.5\t4.0\tSecond.\n")
    assert texts(tmp_path) == [" First.", " Second."]
    (tmp_path / name).write_text("All of it.\n")
    assert texts(tmp_path) == ["All of it."]


def test_metadata_csv_may_name_speakers(tmp_path) -> None:
    (tmp_path / "metadata.csv").write_text("talk|anna|The train was late.\nwalk|anna|We waited for an hour.\n")
    found = find_transcripts([tmp_path / "talk.wav", tmp_path / "walk.wav"])
    assert [(text.speaker, text.text) for text in found.by_recording.values()] == [
        ("anna", "The train was late."),
        ("anna", "We waited for an hour."),
    ]
    assert found.notes == []


def test_transcripts_of_validation_clips_are_read_too(tmp_path) -> None:
    """As the export to LJSpeech leaves them."""
    (tmp_path / "metadata.csv").write_text("talk|First.\n")
    (tmp_path / "metadata_val.csv").write_text("walk|Second.\ntalk|Another.\n")
    found = find_transcripts([tmp_path / "talk.wav", tmp_path / "walk.wav"])
    assert [text.text for text in found.by_recording.values()] == ["First.", "Second."]


def test_the_used_transcript_and_those_without_a_recording_are_reported(tmp_path) -> None:
    for name in ("talk.txt", "talk.lab", "lost.txt", "walk.txt"):
        (tmp_path / name).write_text("Some text.")
    (tmp_path / "talk.srt").write_text(SRT)
    (tmp_path / "metadata.csv").write_text("walk|a text\nrun|another one\nfly|a third one\n")
    found = find_transcripts([tmp_path / f"{name}.wav" for name in ("talk", "walk", "run", "swim")])
    assert [bool(text) for text in found.by_recording.values()] == [True, True, True, False]
    assert found.notes[1:] == [
        f"{tmp_path}: 2 recordings with several transcripts: talk.srt is used, not talk.lab, talk.txt; "
        "walk.txt is used, not metadata.csv:1",
    ]
    assert found.unused == [f"{tmp_path}: 2 transcripts without a recording: lost.txt; metadata.csv:3 (fly)"]


def test_an_unneeded_metadata_csv_is_not_read(tmp_path) -> None:
    (tmp_path / "talk.txt").write_text("Some text.")
    (tmp_path / "metadata.csv").write_text("title,transcription\n")
    assert texts(tmp_path) == ["Some text."]
    with pytest.raises(UserError, match="metadata.csv:1: expected id"):
        find_transcripts([tmp_path / "talk.wav", tmp_path / "walk.wav"])


def clock(seconds: float) -> str:
    return f"00:00:{seconds:06.3f}"


FORMS = {
    "railway.srt": lambda n, one: f"{n}\n{clock(one['start'])} --> {clock(one['end'])}\n<i>{one['text']}</i>\n\n".replace(".", ",", 2),
    "railway.vtt": lambda n, one: f"{'WEBVTT' * (n == 1)}\n\n{clock(one['start'])[3:]} --> {clock(one['end'])[3:]} line:0\n{one['text']}\n",
    "railway.txt": lambda n, one: f"{one['start']:.6f}\t{one['end']:.6f}\t{one['text']}\n",
    "railway.lab": lambda n, one: f"{round(one['start'] * 1e7)} {round(one['end'] * 1e7)} {one['text']}\n",
}


@pytest.mark.parametrize("name", FORMS)
def test_one_transcript_in_every_form_gives_the_same_units(name, said, tmp_path) -> None:
    (tmp_path / name).write_text("".join(FORMS[name](n, one) for n, one in enumerate(said, start=1)))
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "railway.json").write_text(json.dumps(said))
    ours, other = (find_transcript(folder / "railway.ogg").make_units(10**6, "english") for folder in (tmp_path / "json", tmp_path))
    assert len(said) == 8
    assert [unit.text for unit in other] == [unit.text for unit in ours]
    assert all(abs(a.start - b.start) <= 24 and abs(a.stop - b.stop) <= 24 for a, b in zip(ours, other, strict=True))  # a millisecond


def find_below(root: Path, *names: str) -> dict[str, tuple[str | None, str | None, str]]:
    """Name → (speaker, language, text) of recordings below `root`."""
    paths = [root / name for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
    found = find_transcripts(paths, root).by_recording
    return {path.relative_to(root).as_posix(): (text.speaker, text.language, text.text) for path, text in found.items() if text}


def test_published_corpora_are_read_as_they_are(tmp_path) -> None:
    voice = tmp_path / "cv" / "de"
    (voice / "clips").mkdir(parents=True)
    for name in ("validated.tsv", "train.tsv"):
        (voice / name).write_text("client_id\tpath\tsentence\tlocale\n8f\ta.mp3\tGuten Tag.\tde\n")
    (voice / "other.tsv").write_text("client_id\tpath\tsentence\tlocale\n8f\tb.mp3\tUngeprüft.\tde\n")
    assert find_below(voice, "clips/a.mp3", "clips/b.mp3") == {"clips/a.mp3": ("8f", "de", "Guten Tag.")}
    assert find_below(voice / "clips", "a.mp3") == {"a.mp3": ("8f", "de", "Guten Tag.")}, "a folder of that name alone"
    libri = tmp_path / "dev-clean"
    (libri / "84" / "121").mkdir(parents=True)
    (libri / "84" / "121" / "84-121.trans.txt").write_text("84-121-0000 GO\n84-121-0001 DO\n")
    assert find_below(libri, "84/121/84-121-0001.flac") == {"84/121/84-121-0001.flac": ("84", None, "DO")}
    vctk = tmp_path / "vctk"
    (vctk / "txt" / "p225").mkdir(parents=True)
    (vctk / "txt" / "p225" / "p225_001.txt").write_text("Please call Stella.")
    assert find_below(vctk, "wav48/p225/p225_001.wav") == {"wav48/p225/p225_001.wav": ("p225", None, "Please call Stella.")}
    notes = find_transcripts([vctk / "wav48" / "p225" / "p225_001.wav"], vctk).notes
    assert notes == [f"1 text of the folder {vctk / 'txt'} used, as in VCTK"]
    sovits = tmp_path / "output"
    (sovits / "asr_opt").mkdir(parents=True)
    (sovits / "asr_opt" / "cut.list").write_text("output/cut/a.wav|anna|EN|Yes.\n")
    assert find_below(sovits, "cut/a.wav") == {"cut/a.wav": ("anna", "EN", "Yes.")}


def test_whispers_tsv(tmp_path) -> None:
    (tmp_path / "talk.tsv").write_text("start\tend\ttext\n500\t2000\tFirst.\n2500\t4000\t Second. \n")
    transcript = find_transcript(tmp_path / "talk.wav")
    assert [(one.start, one.end, one.text) for one in transcript.utterances] == [(0.5, 2.0, "First."), (2.5, 4.0, "Second.")]
    (tmp_path / "talk.tsv").write_text("start\tend\ttext\n0.5\t2000\tFirst.\n")
    with pytest.raises(UserError, match=r"talk.tsv:2: expected start and end in milliseconds"):
        find_transcript(tmp_path / "talk.wav")


def test_a_name_that_fits_several_recordings_is_refused(tmp_path) -> None:
    (tmp_path / "texts.csv").write_text("file_name,text\na.wav,Whose?\n")
    with pytest.raises(UserError, match=r"texts.csv:2: names both .*anna/a.wav and .*bo/a.wav; write the path"):
        find_below(tmp_path, "anna/a.wav", "bo/a.wav")


def test_near_misses_are_found(tmp_path) -> None:
    for name in ("talk.srt.txt", "captions.sbv", "notes.md"):
        (tmp_path / name).write_text("x")
    found = find_transcripts([tmp_path / "talk.wav"], tmp_path)
    assert [path.name for path in found.near_misses] == ["talk.srt.txt", "captions.sbv"]


def test_the_mark_of_a_written_dataset_is_no_transcript(tmp_path: Path) -> None:
    (tmp_path / "a.wav").touch()
    (tmp_path / "dataset.json").write_text("{}")
    found = find_transcripts([tmp_path / "a.wav"])
    assert (found.unused, found.near_misses) == ([], [])


NAMES = [
    ("talk.mp3.srt", "talk.mp3", "as written"),
    ("talk.m4a.vtt", "talk.m4a", "as written"),
    ("talk.webm.json", "talk.webm", "as written"),
    ("talk.mp3.txt", "talk.mp3", "as written"),
    ("talk.mp3.en.srt", "talk.mp3", "as written"),
    ("talk.mp3.srt", "talk.wav", "with another ending"),
    ("talk.wav.pt-BR.vtt", "talk.opus", "with another ending"),
    ("Talk.srt", "talk.wav", "regardless of case"),
    (unicodedata.normalize("NFD", "fünf.en.srt"), "fünf.wav", "by Unicode form"),
    ("my%20talk.txt", "my talk.wav", "percent-encoded"),
]


@pytest.mark.parametrize(("name", "recording", "rule"), NAMES)
def test_transcripts_are_found_by_the_names_that_programs_give_them(name: str, recording: str, rule: str, tmp_path: Path) -> None:
    contents = {".srt": SRT, ".vtt": f"WEBVTT\n\n{SRT.replace(',', '.')}", ".json": json.dumps(TIMED), ".txt": "First."}
    (tmp_path / name).write_text(contents[Path(name).suffix])
    for other in (recording, "other.wav"):
        (tmp_path / other).touch()
    found = find_transcripts([tmp_path / recording, tmp_path / "other.wav"], tmp_path)
    assert found.by_recording[tmp_path / recording].make_units(240_000, "english")[0].text.strip() == "First."
    assert found.by_recording[tmp_path / "other.wav"] is None and found.unused == []
    said = f"{tmp_path}: 1 transcript found: 1 {rule}"
    assert (said in found.notes) == (rule != "as written")


def test_a_transcript_of_one_of_two_formats_is_not_that_of_the_other(tmp_path: Path) -> None:
    for name in ("talk.mp3", "talk.wav"):
        (tmp_path / name).touch()
    (tmp_path / "talk.mp3.srt").write_text(SRT)
    for recordings in (["talk.wav", "talk.mp3"], ["talk.wav"]):  # the other file is there, also if one recording is given
        found = find_transcripts([tmp_path / name for name in recordings])
        assert [name for name in recordings if found.by_recording[tmp_path / name]] == [name for name in recordings if name == "talk.mp3"]
    (tmp_path / "talk.mp3.srt").rename(tmp_path / "talk.m4a.srt")
    with pytest.raises(UserError, match=r"talk.m4a.srt: names both talk.mp3 and talk.wav; name it exactly as one of them"):
        find_transcript(tmp_path / "talk.wav")
    (tmp_path / "talk.m4a.srt").rename(tmp_path / "talk.srt")
    assert texts(tmp_path) == [" First."], "both are the same sound"


@pytest.mark.parametrize(("name", "recordings"), [("TALK.wav", ("Talk.wav", "talk.wav")), ("talk.wav", ("talk.flac", "talk.opus"))])
def test_a_row_that_fits_two_recordings_after_a_change_is_refused(name: str, recordings: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "texts.csv").write_text(f"file_name,text\n{name},Whose?\n")
    with pytest.raises(UserError, match=rf"texts.csv:2: names both .*/{recordings[0]} and .*/{recordings[1]}; write the path"):
        find_below(tmp_path, *recordings)


def test_names_of_macos_and_label_studio_find_their_recordings_and_are_counted(tmp_path: Path) -> None:
    names = ["one", "fünf", "señor"]
    recordings = [f"wavs/{unicodedata.normalize('NFD', name)}.opus" for name in names]
    (tmp_path / "metadata.csv").write_text("".join(f"{name}|{name}!\n" for name in names))
    assert [text for *_, text in find_below(tmp_path, *recordings).values()] == ["one!", "fünf!", "señor!"]
    notes = find_transcripts([tmp_path / name for name in recordings], tmp_path).notes
    assert notes == [f"{tmp_path / 'metadata.csv'}: 3 recordings found: 2 by Unicode form; 1 by name without ending"]
    (tmp_path / "metadata.csv").unlink()
    (tmp_path / "project-1.csv").write_text(
        "annotation_id,annotator,audio,created_at,id,transcription\n"
        '0,1,/data/local-files/?d=wavs/one.opus,2026,0,"One."\n'
        '1,1,/data/upload/1/0a1b2c3d-f%C3%BCnf.opus,2026,1,"Five."\n'
    )
    assert [text for *_, text in find_below(tmp_path, *recordings).values()] == ["One.", "Five."]


def test_rows_without_a_recording_are_listed_with_the_nearest_names(tmp_path: Path) -> None:
    (tmp_path / "metadata.csv").write_text("chapter_1|One.\nrailway|Two.\nchapter_002|Three.\nd|Four.\n")
    found = find_transcripts([tmp_path / "chapter_01.wav", tmp_path / "chapter_02.wav"], tmp_path)
    assert not any(found.by_recording.values())
    assert found.unused == [
        f"{tmp_path}: 4 transcripts without a recording: metadata.csv:1 (chapter_1; the nearest file is chapter_01.wav); "
        "metadata.csv:2 (railway); metadata.csv:3 (chapter_002; the nearest file is chapter_02.wav); …"
    ]
