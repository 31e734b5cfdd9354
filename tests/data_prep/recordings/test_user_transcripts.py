"""Which transcript belongs to which recording, in every form, and messages about broken ones."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

import pytest

from overtone.data_prep.recordings.user_transcripts import find_transcript, find_transcripts
from overtone.finetune.errors import UserError

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
    assert found.notes == []
    assert {kind: one.examples for kind, one in found.removed.items()} == {
        "sound and mood tags": ("[music]",),
        "texts without speech": ("[music]",),
    }


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
    assert found.notes == [
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
    "railway.sbv": lambda n, one: f"0:{clock(one['start'])[3:]},0:{clock(one['end'])[3:]}\n{one['text']}\n\n",
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


def test_a_name_that_fits_several_recordings_is_refused(tmp_path) -> None:
    (tmp_path / "texts.csv").write_text("file_name,text\na.wav,Whose?\n")
    with pytest.raises(UserError, match=r"texts.csv:2: names both .*anna/a.wav and .*bo/a.wav; write the path"):
        find_below(tmp_path, "anna/a.wav", "bo/a.wav")


def test_near_misses_are_found(tmp_path) -> None:
    for name in ("talk.srt.txt", "captions.smi", "notes.md"):
        (tmp_path / name).write_text("x")
    found = find_transcripts([tmp_path / "talk.wav"], tmp_path)
    assert [path.name for path in found.near_misses] == ["talk.srt.txt", "captions.smi"]


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


SENTENCES = ("The old lighthouse stands at the end.", "Seven boats came back.", "My sister bought a bicycle.")
TWO_SPEAKERS = {
    "talk.srt": "".join(
        f"{n}\n00:00:0{n},000 --> 00:00:0{n},900\n[SPEAKER_0{n % 2}]: {text}\n\n" for n, text in enumerate(SENTENCES, start=1)
    ),
    "talk.vtt": "WEBVTT\n\n00:01.000 --> 00:02.000\n<v Anna>Hi.</v>\n\n00:02.000 --> 00:03.000\n<v Bob>Ho.</v>\n",
    "talk.json": json.dumps([one | {"text": f"{name}: {one['text']}"} for one, name in zip(TIMED, ("Anna", "Bob"), strict=True)]),
    "talk.transcript.json": json.dumps([one | {"speaker": name} for one, name in zip(TIMED, "AB", strict=True)]),
    "talk.txt": "Anna: Hi.\nBob: Ho.\nAnna: Yes.\n",
    "talk.lab": "0.5\t2.0\t(speaker 0) First.\n2.5\t4.0\t(speaker 1) Second.\n",
    "talk.tsv": "start\tend\ttext\n500\t2000\tANNA: First.\n2500\t4000\tBOB: Second.\n5000\t6000\tANNA: Third.\n",
    "talk.sbv": "0:00:01.000,0:00:02.000\n>> ANNA: Hi.\n\n0:00:02.000,0:00:03.000\n>> BOB: Ho.\n",
}


@pytest.mark.parametrize("name", TWO_SPEAKERS)
def test_two_speakers_are_refused_in_every_form(name, tmp_path) -> None:
    (tmp_path / name).write_text(TWO_SPEAKERS[name])
    with pytest.raises(UserError, match=rf"{name}: several speakers \(\w+( 0)?, \w+( 1)?\) in one recording; split it by speaker first"):
        find_transcript(tmp_path / "talk.wav")
    (tmp_path / name).write_text(
        re.sub(r"SPEAKER_00|Bob|BOB|\(speaker 1\)|\"B\"", "Anna", TWO_SPEAKERS[name]).replace("SPEAKER_01", "Anna")
    )
    if name not in ("talk.lab", "talk.transcript.json", "talk.tsv"):
        assert find_transcript(tmp_path / "talk.wav").speaker in ("Anna", "ANNA")


def test_speakers_of_the_lines_of_a_table_are_read(tmp_path) -> None:
    (tmp_path / "metadata.csv").write_text("a|Anna: Hi.\nb|Bob: Ho.\nc|Anna: (laughs) Yes.\nd|[music]\ne|Anna: I [inaudible] it.\n")
    found = find_transcripts([tmp_path / f"{name}.wav" for name in "abcde"])
    texts = [(text.speaker, text.text) if text else None for text in found.by_recording.values()]
    assert texts == [("Anna", "Hi."), ("Bob", "Ho."), ("Anna", "Yes."), None, None]
    table = tmp_path / "metadata.csv"
    assert f"2 texts not used, since nobody speaks there, or words are missing: {table}:4, {table}:5" in found.notes
    assert {kind: one.count for kind, one in found.removed.items()} == {
        "names of speakers": 4,
        "sound and mood tags": 2,
        "marks of words that nobody understood": 1,
        "texts that lack words that somebody speaks": 1,
        "texts without speech": 1,
    }


def test_text_files_beside_the_recordings_are_judged_together(tmp_path) -> None:
    for name, text in {"a": "Anna: Hi.", "b": "Anna: Ho.", "c": "Anna: Yes.", "d": "Dr. Who: the film."}.items():
        (tmp_path / f"{name}.txt").write_text(text)
    found = find_transcripts([tmp_path / f"{name}.wav" for name in "abcd"])
    assert [text.text for text in found.by_recording.values()] == ["Hi.", "Ho.", "Yes.", "the film."]
    (tmp_path / "a.txt").write_text("Hi.")
    (tmp_path / "b.txt").write_text("Ho.")
    (tmp_path / "c.txt").write_text("Yes.")
    found = find_transcripts([tmp_path / f"{name}.wav" for name in "abcd"])
    assert found.by_recording[tmp_path / "d.wav"].text == "Dr. Who: the film."
    assert found.notes == ["texts of whole recordings: kept as spoken, since too rare for names of speakers: 'Dr. Who:' (1 of 4)"]


def test_the_json_of_whisper_cpp(tmp_path) -> None:
    entries = [{"offsets": {"from": 1000 * n, "to": 1000 * n + 900}, "text": f" {text}"} for n, text in enumerate(SENTENCES)]
    (tmp_path / "talk.json").write_text(json.dumps({"result": {"language": "en"}, "transcription": entries}))
    found = find_transcript(tmp_path / "talk.wav")
    assert [(one.start, one.end, one.text) for one in found.utterances] == [(n, n + 0.9, text) for n, text in enumerate(SENTENCES)]


INVISIBLE = {
    "a": ("The old light\u00adhouse", "The old lighthouse"),
    "b": ("Seven boats came be\u200bfore", "Seven boats came before"),
    "c": ("a yellow\u0085bicycle", "a yellow bicycle"),
    "d": ("the\u2028heavy boxes", "the heavy boxes"),
    "e": ("\u200fNobody expected.\u200e", "Nobody expected."),
    "f": ("We walked.\ufeff", "We walked."),
    "g": ("the little ba\u2060kery", "the little bakery"),
    "h": ("می\u200cخواهم", "می\u200cخواهم"),
}


@pytest.mark.parametrize("form", ["metadata.csv", "texts.jsonl", "txt", "srt", "json"])
def test_invisible_characters_leave_the_texts_of_every_form(form, tmp_path) -> None:
    if form == "metadata.csv":
        (tmp_path / form).write_text("".join(f"{name}|{given}\n" for name, (given, _) in INVISIBLE.items()), encoding="utf-8")
    elif form == "texts.jsonl":
        lines = [json.dumps({"file_name": f"{name}.wav", "text": given}) for name, (given, _) in INVISIBLE.items()]
        (tmp_path / form).write_text("\n".join(lines))
    else:
        for name, (given, _) in INVISIBLE.items():
            text = {"srt": f"00:01,0 --> 00:02,0\n{given}\n", "json": json.dumps([{"start": 0, "end": 1, "text": given}])}.get(form, given)
            (tmp_path / f"{name}.{form}").write_text(text, encoding="utf-8")
    found = find_transcripts([tmp_path / f"{name}.wav" for name in INVISIBLE])
    assert [text.make_units(9, "english")[0].text.strip() for text in found.by_recording.values()] == [
        good for _, good in INVISIBLE.values()
    ]
    assert {kind: one.count for kind, one in found.removed.items()} == {
        "directional marks": 2,
        "soft hyphens": 1,
        "special line breaks": 2,
        "zero-width characters": 3,
    }


def test_one_bad_cue_is_skipped_and_many_are_refused(tmp_path) -> None:
    good = "".join(f"{n}\n00:00:0{n},000 --> 00:00:0{n},900\nText {n}.\n\n" for n in range(1, 6))
    (tmp_path / "talk.srt").write_text(good + "6\n00:00:xx,000 --> 00:00:07,000\nLost.\n")
    found = find_transcripts([tmp_path / "talk.wav"])
    assert len(found.by_recording[tmp_path / "talk.wav"].utterances) == 5
    assert found.notes == [
        f"{tmp_path}/talk.srt: 1 cue skipped: {tmp_path}/talk.srt:22: invalid times '00:00:xx,000 --> 00:00:07,000', "
        "expected 00:00:01,000 --> 00:00:02,500"
    ]
    (tmp_path / "talk.srt").write_text(good.replace(",900", "...") + good)
    with pytest.raises(UserError, match=r"talk.srt: 5 of its 10 cues cannot be used; correct them: .*talk.srt:2: invalid times"):
        find_transcript(tmp_path / "talk.wav")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("line_break", ["\n", "\r\n", "\r"])
def test_subtitles_in_every_encoding_and_with_every_line_break(encoding, line_break, tmp_path) -> None:
    text = "1\n00:00:00,500 --> 00:00:02,000\nÜber\nalles.\n2\n00:00:02,500 --> 00:00:04,000\nZwei.\n"
    (tmp_path / "talk.srt").write_bytes(text.replace("\n", line_break).encode(encoding))
    assert texts(tmp_path) == [" Über alles.", " Zwei."]


def test_textgrid_and_substation_beside_a_recording(tmp_path) -> None:
    grid = '"ooTextFile" "TextGrid" 0 4 <exists> 1 "IntervalTier" "text" 0 4 2 0 1 "" 1 2 "Erster Satz (hustet)."'
    (tmp_path / "talk.TextGrid").write_bytes(grid.encode("utf-16"))
    assert texts(tmp_path) == [" Erster Satz."]
    events = "[Events]\nFormat: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text\n"
    (tmp_path / "talk.ass").write_text(events + "Dialogue: 0,0:00:01.00,0:00:02.00,Default,Anna,0,0,0,,{\\i1}Zwei{\\i0}\\NDrei [Musik]\n")
    found = find_transcript(tmp_path / "talk.wav")
    assert (found.speaker, [(one.start, one.end, one.text) for one in found.utterances]) == ("Anna", [(1.0, 2.0, "Zwei Drei")])


@pytest.mark.parametrize("ending", [".txt", ".lab"])
def test_subtitles_with_the_ending_of_a_text_are_subtitles(ending, tmp_path) -> None:
    (tmp_path / "talk.wav").touch()
    for content in (SRT, f"WEBVTT\n\n{SRT.replace(',', '.')}"):
        (tmp_path / f"talk{ending}").write_text(content)
        found = find_transcript(tmp_path / "talk.wav")
        assert found is not None and found.utterances[0].text == "First."


@pytest.mark.parametrize(
    "content",
    ["<html><body>Hello</body></html>", "<!DOCTYPE html>\n<p>Hello", "{\\rtf1\\ansi Hello}", '{"text": "Hello"}', '[{"text": "Hello"}]'],
)
def test_a_document_is_no_plain_text(content, tmp_path) -> None:
    (tmp_path / "talk.wav").touch()
    (tmp_path / "talk.txt").write_text(content)
    with pytest.raises(UserError, match=r"talk.txt:1: not a plain text \(.*\); save it as text"):
        find_transcript(tmp_path / "talk.wav")


@pytest.mark.parametrize("name", ["talk.EN.srt", "talk.en_US.srt", "talk.en.sdh.srt", "talk.pt-BR.cc.srt"])
def test_tags_of_languages_in_names(name, tmp_path) -> None:
    (tmp_path / "talk.wav").touch()
    (tmp_path / name).write_text(SRT)
    assert find_transcript(tmp_path / "talk.wav") is not None
