"""`overtone voice` on the embedded sample and on generated files."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from overtone.data_prep.audio.waveform import MASTER_RATE, load_track, probe_recording
from overtone.data_prep.cli import export, voice
from overtone.data_prep.clips import dnsmos, review_decisions
from overtone.data_prep.clips.review_decisions import Decision
from overtone.data_prep.parallel.item_distribution import distribute_items
from overtone.data_prep.pipeline import all_recordings
from tests.data_prep.conftest import peak_frequency
from tests.data_prep.pipeline.test_all_recordings import FailingScorer

ROOT = Path(__file__).resolve().parents[3]
RECORDINGS = 4
SENTENCES = 35


def rows(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def clips(out: Path) -> list[dict]:
    return sorted(rows(out / "train.jsonl") + rows(out / "val.jsonl"), key=lambda row: (row["source"], row["start"]))


def run(*argv: object, workers: int = 0) -> int:
    return voice.main([*(str(one) for one in argv), "--workers", str(workers)])


def read_output(out: Path, name: str) -> dict:
    return json.loads((out / name).read_text())


def contents(out: Path) -> dict[str, bytes]:
    """What a run promises to repeat byte by byte."""
    named = [*out.glob("*.jsonl"), out / "summary.json", *out.glob("clips/*/*"), *out.glob("refs/*")]
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in named}


@pytest.fixture(scope="module")
def prepared(sample, tmp_path_factory) -> Path:
    """The sample, prepared without interruption."""
    out = tmp_path_factory.mktemp("prepared") / "out"
    assert run(sample, "--out", out, "--transcripts", "--speaker-from", "folder", "--language", "en") == 0
    return out


def test_the_sample_becomes_one_clip_a_sentence(prepared, sample) -> None:
    made = clips(prepared)
    assert len(made) == SENTENCES
    assert rows(prepared / "rejects.jsonl") == []
    assert {row["speaker"] for row in made} == {"rms", "slt"}
    assert {row["language"] for row in made} == {"english"}
    transcripts = {path.name.split(".")[0]: json.loads(path.read_text()) for path in sample.rglob("*.transcript.json")}
    for stem, said in transcripts.items():
        assert [row["text"] for row in made if f"/{stem}." in row["source"]] == [one["text"] for one in said]


def test_an_exported_audiofolder_is_prepared_again_with_its_texts_speakers_and_language(prepared, tmp_path) -> None:
    folder = tmp_path / "exported"
    assert export.main([str(prepared), "--as", "audiofolder", "--to", str(folder)]) == 0
    assert run(folder, "--out", tmp_path / "again", "--transcripts", "--speaker-from", "transcript") == 0
    before, after = (sorted((row["text"], row["speaker"], row["language"]) for row in clips(out)) for out in (prepared, tmp_path / "again"))
    assert len(after) > SENTENCES // 2 and set(after) <= set(before) and {row[1] for row in after} == {"rms", "slt"}


def read_options(*argv: str) -> voice.VoiceOptions:
    return voice.read_options(voice.parser().parse_args(argv))


def test_the_defaults_of_the_command_line_are_those_of_a_program() -> None:
    assert read_options("in", "--out", "out", "--transcripts") == voice.VoiceOptions(
        Path("in"), Path("out"), transcripts=True, config=[], split=[]
    )


def test_a_speaker_of_the_transcripts_that_is_not_used_is_named(tmp_path, write_sound, capsys) -> None:
    write_sound(tmp_path / "me" / "a.wav", np.zeros(24000), 24000)
    (tmp_path / "me" / "all.list").write_text("a.wav|Ann|en|Good day.\n")
    for more, noted in (([], True), (["--speaker-from", "transcript"], False), (["--speaker", "me"], False)):
        voice._list_tasks(read_options(str(tmp_path / "me"), "--out", str(tmp_path / "out"), "--transcripts", *more))
        note = "note: the speaker is me; --speaker-from transcript uses Ann, whom the transcripts name"
        assert (note in capsys.readouterr().err) == noted


def test_no_word_of_the_sample_is_cut(prepared, sample) -> None:
    """Inside each sentence's known times, whatever is not in its clip is as quiet as the room."""
    checked = 0
    for source in sorted({row["source"] for row in clips(prepared)}):
        path = sample / source
        samples = load_track(path, probe_recording(path), MASTER_RATE)[0].samples.astype(np.float64)
        said = json.loads(path.with_name(f"{path.stem}.transcript.json").read_text())
        made = [row for row in clips(prepared) if row["source"] == source]
        room = np.median([loudness(samples, one["end"] + 0.05, other["start"] - 0.05) for one, other in pairwise(said)])
        for sentence, clip in zip(said, made, strict=True):
            allowed = max(room + 9, loudness(samples, sentence["start"], sentence["end"]) - 35)
            for start, stop in ((sentence["start"], clip["start"]), (clip["end"], sentence["end"])):
                for moment in np.arange(start, stop - 0.01, 0.01):
                    assert loudness(samples, moment, moment + 0.01) < allowed
            others = [one for one in said if one is not sentence]
            assert all(clip["end"] <= one["start"] + 0.01 or clip["start"] >= one["end"] - 0.01 for one in others)
            checked += 1
    assert checked == SENTENCES


def loudness(samples: np.ndarray, start: float, stop: float) -> float:
    part = samples[int(start * MASTER_RATE) : int(stop * MASTER_RATE)]
    return 10 * np.log10(np.square(part).mean() + 1e-12)


def test_clips_are_24_khz_mono_and_exactly_as_long_as_they_say(prepared) -> None:
    for row in clips(prepared):
        info = soundfile.info(prepared / row["audio"])
        assert (info.samplerate, info.channels, info.subtype, info.format) == (MASTER_RATE, 1, "PCM_16", "FLAC")
        assert info.frames == round(row["duration"] * MASTER_RATE) == round((row["end"] - row["start"]) * MASTER_RATE)
        assert max(row["quality"]["edge_energy_db"]) < -20
        assert (prepared / row["ref_audio"]).is_file()


def test_the_summary_accounts_for_every_sample(prepared) -> None:
    summary = read_output(prepared, "summary.json")
    assert summary["recordings"] == RECORDINGS
    assert len(summary["sources"]) == RECORDINGS
    for source in summary["sources"]:
        assert source["kept"] + source["rejected"] + source["non_speech"] == source["total"]
    assert summary["kept_seconds"] == pytest.approx(sum(row["duration"] for row in clips(prepared)), abs=1e-3)
    assert summary["train"] + summary["val"] == summary["clips"] == SENTENCES
    assert summary["val"] == 4  # an eighth of each speaker: the last sentence of both recordings
    assert read_output(prepared, "run.json")["model_loads"] == {"vad": 1}


def test_a_second_run_computes_nothing_and_a_new_recording_only_itself(prepared, sample, tmp_path) -> None:
    recordings, out = tmp_path / "in", tmp_path / "out"
    shutil.copytree(sample, recordings)
    shutil.copytree(prepared, out)
    before = contents(out)
    options = (recordings, "--out", out, "--transcripts", "--speaker-from", "folder", "--language", "en")
    assert run(*options) == 0
    assert contents(out) == before
    assert read_output(out, "run.json")["computed"] == {}
    assert read_output(out, "run.json")["model_loads"] == {}
    samples, rate = soundfile.read(recordings / "slt" / "harbour.flac", frames=44100 * 5)
    soundfile.write(recordings / "slt" / "more.wav", samples, rate)
    (recordings / "slt" / "more.txt").write_text("The harbour wakes up, long before the first ferry leaves.")
    assert run(*options) == 0
    assert read_output(out, "run.json")["computed"] == {"speech": 1, "clips": 1}
    assert len(clips(out)) == SENTENCES, "it is a piece of a recording that is there already"
    assert read_output(out, "summary.json")["rejected_by_reason"] == {"duplicate": 1}
    (recordings / "slt" / "more.wav").unlink()
    (recordings / "slt" / "more.txt").unlink()
    assert run(*options) == 0
    assert contents(out) == before


def test_codes_are_kept_for_unchanged_rows(prepared, sample, tmp_path) -> None:
    out = tmp_path / "out"
    shutil.copytree(prepared, out)
    for name in ("train.jsonl", "val.jsonl"):
        with_codes = [row | {"audio_codes": [[1] * 16]} for row in rows(out / name)]
        (out / name).write_text("".join(json.dumps(row) + "\n" for row in with_codes))
    before = contents(out)
    options = (sample, "--out", out, "--transcripts", "--speaker-from", "folder", "--language", "en")
    assert run(*options) == 0
    assert contents(out) == before
    assert run(*options, "--val-share", 0.2) == 0
    assert not any("audio_codes" in row for row in clips(out))


@pytest.mark.ci
@pytest.mark.slow
def test_worker_processes_and_another_order_of_completion_give_the_same_bytes(railway, said, tmp_path, monkeypatch) -> None:
    recordings = tmp_path / "in"
    recordings.mkdir()
    for number, one in enumerate(said[:3]):
        samples = railway.samples[int((one["start"] - 0.2) * MASTER_RATE) : int((one["end"] + 0.2) * MASTER_RATE)]
        soundfile.write(recordings / f"{number}.wav", samples, MASTER_RATE)
        (recordings / f"{number}.txt").write_text(one["text"])
    here, worker, reverse = tmp_path / "here", tmp_path / "worker", tmp_path / "reverse"
    for out, workers in ((here, 0), (worker, 2)):
        assert run(recordings, "--out", out, "--transcripts", "--speaker", "me", workers=workers) == 0
    assert contents(worker) == contents(here) and len(clips(here)) == 3
    assert read_output(worker, "run.json")["computed"] == {"speech": 3, "clips": 3}
    assert read_output(worker, "run.json")["model_loads"]["vad"] <= 2
    monkeypatch.setattr(all_recordings, "distribute_items", lambda *given: reversed(list(distribute_items(*given))))
    assert run(recordings, "--out", reverse, "--transcripts", "--speaker", "me") == 0
    assert contents(reverse) == contents(here)


@pytest.mark.slow
def test_two_workers_prepare_the_sample_as_one_process_does(prepared, sample, tmp_path) -> None:
    out = tmp_path / "out"
    assert run(sample, "--out", out, "--transcripts", "--speaker-from", "folder", "--language", "en", workers=2) == 0
    assert contents(out) == contents(prepared)
    assert read_output(out, "run.json")["model_loads"]["vad"] <= 2
    assert read_output(out, "run.json")["computed"] == {"speech": RECORDINGS, "clips": RECORDINGS}


@pytest.mark.parametrize("rate", [16000, 22050, 44100, 48000])
def test_a_tone_under_speech_keeps_its_frequency(rate, one_sentence, tmp_path) -> None:
    """A tone under real speech goes through the whole chain, detector included; and the times do not depend on the rate."""
    recordings, out = tmp_path / "in", tmp_path / "out"
    recordings.mkdir()
    speech = soxr.resample(one_sentence.samples, MASTER_RATE, rate, quality="VHQ")
    soundfile.write(recordings / "take.wav", speech + 0.02 * np.sin(2 * np.pi * 440 * np.arange(len(speech)) / rate), rate)
    (recordings / "take.txt").write_text("The night train to the north leaves from platform seven.")
    assert run(recordings, "--out", out, "--transcripts", "--speaker", "me") == 0
    (row,) = clips(out)
    samples, out_rate = soundfile.read(out / row["audio"])
    assert out_rate == MASTER_RATE
    assert peak_frequency(samples, out_rate, 440) == pytest.approx(440, abs=0.5)
    assert len(samples) == round((row["end"] - row["start"]) * MASTER_RATE)
    assert row["start"] == pytest.approx(0.39, abs=0.06)
    assert row["end"] == pytest.approx(4.01, abs=0.06)


def test_what_nobody_speaks_is_left_out_and_reported(one_sentence, tmp_path, capsys) -> None:
    recordings, out = tmp_path / "in", tmp_path / "out"
    recordings.mkdir()
    soundfile.write(recordings / "take.wav", one_sentence.samples, MASTER_RATE)
    (recordings / "take.txt").write_text("SPEAKER_00: The night train (coughs) to the north <i>leaves</i>\nfrom plat\u00adform seven.")
    assert run(recordings, "--out", out, "--transcripts", "--speaker", "me", "--speaker-check", "none") == 0
    assert [row["text"] for row in clips(out)] == ["The night train to the north leaves from platform seven."]
    assert read_output(out, "summary.json")["removed_text"] == {
        "formatting tags and entities": {"count": 2, "examples": []},
        "names of speakers": {"count": 1, "examples": ["SPEAKER_00:"]},
        "soft hyphens": {"count": 1, "examples": []},
        "sound and mood tags": {"count": 1, "examples": ["(coughs)"]},
    }
    assert "left out of the texts, since nobody speaks it: 2 formatting tags and entities; 1 names of" in capsys.readouterr().err


def test_bad_recordings_are_rejected_and_the_others_processed(one_sentence, railway, said, tmp_path, write_sound, capsys) -> None:
    recordings, out = tmp_path / "in", tmp_path / "out"
    text = "The night train to the north leaves from platform seven."
    good = one_sentence.samples
    second, third = (railway.samples[int((one["start"] - 0.2) * MASTER_RATE) : int((one["end"] + 0.2) * MASTER_RATE)] for one in said[1:3])
    broken = good.copy()
    broken[100] = np.nan
    for name, samples in {'it\'s "good" 声音.wav': good, "nan.wav": broken, "empty.wav": good[:0], "silent.flac": good * 0}.items():
        write_sound(recordings / name, samples, MASTER_RATE)
    for name, data in {"garbage.mp3": b"\x01\x02" * 999, "nothing.m4a": b""}.items():
        (recordings / name).write_bytes(data)
    write_sound(recordings / "apple.m4a", second, MASTER_RATE)
    write_sound(recordings / "cut.wav", np.concatenate([third, third]), MASTER_RATE)
    (recordings / "cut.wav").write_bytes((recordings / "cut.wav").read_bytes()[: len(third) * 2])
    shutil.copy(recordings / 'it\'s "good" 声音.wav', recordings / "twin.wav")
    for path in sorted(recordings.iterdir()):
        path.with_suffix(".txt").write_text(text)
    write_sound(recordings / "untold.wav", good * 0.8, MASTER_RATE)
    assert run(recordings, "--out", out, "--transcripts", "--speaker", "me") == 0
    assert {row["source"] for row in clips(out)} == {'it\'s "good" 声音.wav', "apple.m4a", "cut.wav"}
    assert {row["source"]: row["reasons"] for row in rows(out / "rejects.jsonl")} == {
        "nan.wav": ["nan"],
        "empty.wav": ["empty"],
        "silent.flac": ["silent"],
        "garbage.mp3": ["unreadable"],
        "nothing.m4a": ["unreadable"],
        "twin.wav": ["duplicate"],
        "untold.wav": ["no_transcript"],
    }
    printed, said = capsys.readouterr()
    assert "nan.wav: rejected, nan: a sample that is not a number at 0.004 s" in printed
    damage = f"truncated: the file declares {2 * len(third) / MASTER_RATE:.2f} s"
    assert f"warning: cut.wav: {damage}" in said and "note: untold.wav: 1 recording without a transcript" in said
    sources = {one["source"]: one for one in json.loads((out / "summary.json").read_text())["sources"]}
    assert damage in sources["cut.wav"]["warning"] and "without a transcript" in sources["untold.wav"]["warning"]
    assert sources["apple.m4a"]["texts"] == "transcript; looks english; words not checked" and sources["untold.wav"]["texts"] == ""


def test_a_crash_on_one_recording_is_counted_everywhere_and_gives_exit_code_3(one_sentence, tmp_path, monkeypatch, capsys) -> None:
    recordings, out = tmp_path / "in", tmp_path / "out"
    recordings.mkdir()
    for name, gain in (("a", 1.0), ("b", 0.9)):
        soundfile.write(recordings / f"{name}.flac", one_sentence.samples * gain, MASTER_RATE)
        (recordings / f"{name}.txt").write_text(f"The night train to the north leaves from platform {name}.")
    monkeypatch.setattr(dnsmos, "find_scorer", lambda: FailingScorer(frozenset({0, 1})))
    assert run(recordings, "--out", out, "--transcripts", "--speaker", "me", "--workers", "0") == voice.LOST == 3
    lost = "1 recording lost by a crash: processing failed twice, the second time alone: IndexError: clip 1 is out of range, in the rating"
    assert lost in capsys.readouterr().err
    summary = read_output(out, "summary.json")
    assert summary["rejected_by_reason"] == {"crashed": 1} and summary["clips"] == 1
    assert [lost in one["warning"] for one in summary["sources"]] in ([True, False], [False, True])


CHOOSE_CHECK = voice._choose_check
"""The function itself, which the tests of this folder replace."""


def test_english_texts_are_checked_by_an_installed_model_and_others_are_said_not_to_be(monkeypatch, tmp_path) -> None:
    def choose(*more: str) -> tuple[str | None, str | None, bool, int]:
        checks, notices = CHOOSE_CHECK(read_options("in", "--out", "out", "--transcripts", *more))
        return checks.align, checks.check_with, checks.is_automatic, len(notices)

    monkeypatch.setattr(voice, "find_spec", lambda name: name == "pocketsphinx")
    assert choose("--language", "en") == ("pocketsphinx", None, True, 1)
    assert choose("--language", "en", "--align", "none") == ("none", None, False, 0)
    assert choose("--language", "en", "--check-with", "small") == (None, "small", False, 0)
    assert choose("--language", "en", "--preset", "keep-all") == (None, None, False, 0)
    assert choose("--language", "it") == choose() == (None, None, False, 0)
    monkeypatch.setattr(voice, "find_spec", lambda name: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert choose("--language", "en") == (None, None, False, 0)
    (tmp_path / "whisper").mkdir()
    for name in ("tiny.en", "base"):
        (tmp_path / "whisper" / f"{name}.pt").touch()
    assert choose("--language", "en") == (None, "base", True, 1)


def test_an_automatic_check_rejects_a_wrong_text_and_says_so(one_sentence, tmp_path, monkeypatch, capsys) -> None:
    pytest.importorskip("pocketsphinx")
    monkeypatch.setattr(voice, "_choose_check", CHOOSE_CHECK)
    recordings, out = tmp_path / "in", tmp_path / "out"
    recordings.mkdir()
    texts = {
        "right": "The night train to the north leaves from platform seven.",
        "wrong": "Some dry bread in the corner keeps no oven warm.",
    }
    for name, text in texts.items():
        soundfile.write(recordings / f"{name}.flac", one_sentence.samples * (0.9 if name == "wrong" else 1.0), MASTER_RATE)
        (recordings / f"{name}.txt").write_text(text)
    options = (recordings, "--out", out, "--transcripts", "--speaker", "me", "--language", "en", "--workers", "0")
    assert run(*options) == 0
    assert "note: pocketsphinx checks whether each text is what is spoken" in capsys.readouterr().err
    summary = read_output(out, "summary.json")
    assert [row["source"] for row in clips(out)] == ["right.flac"] and summary["rejected_by_reason"] == {"text_not_spoken": 1}
    assert {one["texts"] for one in summary["sources"]} == {"transcript; aligned with the sound by pocketsphinx; language fits"}
    assert run(*options, "--align", "none") == 0
    said = capsys.readouterr().err
    assert "whether each text is what is spoken was not checked" in said and "--check-with NAME" in said and "--align MODEL" in said
    summary = read_output(out, "summary.json")
    assert summary["clips"] == 1 and summary["rejected_by_reason"] == {"duplicate": 1}
    assert any("was not checked" in one["text"] for one in summary["notices"])
    assert {one["texts"] for one in summary["sources"]} == {"transcript; language fits; words not checked"}


def test_whisper_provides_the_text(one_sentence, whisper_that_says, tmp_path) -> None:
    recordings, out = tmp_path / "in", tmp_path / "out"
    recordings.mkdir()
    soundfile.write(recordings / "take.flac", one_sentence.samples, MASTER_RATE)
    text = "The night train to the north leaves from platform seven."
    options = (recordings, "--out", out, "--whisper", whisper_that_says(text), "--speaker", "Me")
    assert run(*options) == 0
    (row,) = clips(out)
    assert (row["text"], row["language"], row["speaker"]) == (text, "english", "me")
    assert read_output(out, "run.json")["model_loads"] == {"vad": 1, "whisper": 1}
    assert run(*options) == 0
    assert read_output(out, "run.json")["model_loads"] == {}


def test_presets_and_decisions_apply_without_transcribing_again(one_sentence, random_whisper, tmp_path, capsys) -> None:
    recordings, out = tmp_path / "in", tmp_path / "out"
    recordings.mkdir()
    soundfile.write(recordings / "take.flac", one_sentence.samples, MASTER_RATE)
    options = (recordings, "--out", out, "--whisper", random_whisper)
    assert run(*options, "--dry-run") == 0
    assert "--preset keep-all  keeps 1 of 1 clips" in capsys.readouterr().out
    assert not (out / "train.jsonl").exists()
    assert run(*options, "--preset", "keep-all") == 0
    assert read_output(out, "run.json")["computed"] == {}
    assert run(*options) == 2
    (reject,) = rows(out / "rejects.jsonl")
    review_decisions.append_decision(out, Decision(id=reject["id"], action="keep", text="What is really said."))
    review_decisions.append_decision(out, Decision(id="gone", action="keep"))
    assert run(*options) == 0
    assert [(row["id"], row["audio"], row["text"]) for row in clips(out)] == [(reject["id"], reject["audio"], "What is really said.")]
    assert read_output(out, "run.json")["computed"] == {}
    assert "1 review decisions refer to clips that no longer exist" in capsys.readouterr().err


def test_an_unfinished_transcript_is_rejected_and_counted(one_sentence, random_whisper, tmp_path, capsys) -> None:
    recordings, out = tmp_path / "in", tmp_path / "out"
    recordings.mkdir()
    soundfile.write(recordings / "take.flac", one_sentence.samples, MASTER_RATE)
    assert run(recordings, "--out", out, "--whisper", random_whisper) == 2
    assert "no clip was kept; most frequent reasons: " in capsys.readouterr().err
    (reject,) = rows(out / "rejects.jsonl")
    assert "unfinished_text" in reject["reasons"]
    summary = read_output(out, "summary.json")
    assert summary["rejected_seconds"] == pytest.approx(reject["end"] - reject["start"], abs=1e-5)
    assert summary["kept_seconds"] == 0


def fails(capsys, *argv: object) -> str:
    assert run(*argv) == 2
    return capsys.readouterr().err


def test_bad_requests_name_the_thing_and_the_way_out(tmp_path, capsys, one_sentence) -> None:
    recordings, out = tmp_path / "in", tmp_path / "out"
    recordings.mkdir()
    common = (recordings, "--out", out)
    assert "looked for .aac, .aif" in fails(capsys, *common, "--transcripts")
    assert "does not exist; give the folder" in fails(capsys, tmp_path / "absent", "--out", out, "--transcripts")
    soundfile.write(recordings / "take.wav", one_sentence.samples, MASTER_RATE)
    assert "no recording has a transcript; expected" in fails(capsys, *common, "--transcripts")
    (recordings / "metadata.csv").write_text("other|One.\ntakes|Two.\n")
    said = fails(capsys, *common, "--transcripts")
    assert (
        "no recording has a transcript; " in said
        and "metadata.csv:1 (other); metadata.csv:2 (takes; the nearest file is take.wav);" in said
    )
    (recordings / "metadata.csv").write_text("other|One.\n")
    (recordings / "texts.csv").write_text("first,second\n")
    assert "note: " in (said := fails(capsys, *common, "--transcripts")) and "texts.csv is not read: its first line names" in said
    assert "take.wav is not in a sub-folder" in fails(capsys, *common, "--transcripts", "--speaker-from", "folder")
    assert "neither a file nor one of" in fails(capsys, *common, "--whisper", "smal")
    assert "--language xx: unknown" in fails(capsys, *common, "--whisper", "small", "--language", "xx")
    assert "--val-share 1.0" in fails(capsys, *common, "--whisper", "small", "--val-share", "1")
    assert "expected 0 < shortest <= target <= longest" in fails(capsys, *common, "--whisper", "small", "--longest", "3")
    assert "Whisper does not identify speakers" in fails(capsys, *common, "--whisper", "small", "--speaker-from", "transcript")
    (recordings / "metadata.csv").write_text("take|anna|It was late.\nb|bob|Who would come?\nc|anna|Nobody.\nd|bob|Nobody at all?\n")
    soundfile.write(recordings / "b.wav", one_sentence.samples, MASTER_RATE)
    assert "the transcripts name 2 speakers (anna, bob)" in fails(capsys, *common, "--transcripts")
    (recordings / "take.json").write_text("[{]")
    assert "take.json:1: not JSON" in fails(capsys, *common, "--transcripts")
    assert not (out / "train.jsonl").exists()


@pytest.mark.parametrize(
    "argv", [[], ["--transcripts", "--whisper", "small"], ["--transcripts", "--speaker", "a", "--speaker-from", "folder"]]
)
def test_contradictions_are_refused(argv, tmp_path, capsys) -> None:
    assert voice.main([str(tmp_path), "--out", str(tmp_path), *argv]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_the_verb_runs_as_a_command(tmp_path) -> None:
    command = [sys.executable, "-m", "data_prep", "voice", str(tmp_path), "--out", "x", "--transcripts"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")


def test_help_lists_the_options(capsys) -> None:
    with pytest.raises(SystemExit, match="0"):
        voice.main(["--help"])
    assert "--speaker-from" in capsys.readouterr().out


def test_flac_reads_back_what_the_header_promises(prepared) -> None:
    data = (prepared / clips(prepared)[0]["audio"]).read_bytes()
    samples, _ = soundfile.read(io.BytesIO(data))
    assert samples[0] == samples[-1] == 0


def test_flags_that_do_not_fit_are_refused_by_their_own_name(sample, tmp_path, capsys) -> None:
    assert run(sample, "--out", tmp_path / "a", "--transcripts", "--diarize", "--speaker-check", "none") == 2
    assert "--diarize and --speaker-check none exclude each other" in capsys.readouterr().err
    for options, message in (
        (("--speakers", "2"), "--speakers 2 needs --diarize"),
        (("--diarize", "--speakers", "two"), "--speakers two: expected a number of people, such as 2"),
        (("--diarize", "--speakers", "1"), "--speakers 1: one person needs no --diarize; give --speaker NAME"),
        (("--diarize", "--speakers", "4-2"), "--speakers 4-2: expected 1 to 12 people, the smaller number first"),
        (("--diarize", "--speakers", "13"), "--speakers 13: expected 1 to 12 people"),
        (("--diarize", "--speakers", "0-2"), "--speakers 0-2: expected 1 to 12 people"),
    ):
        assert run(sample, "--out", tmp_path / "a", "--transcripts", *options) == 2
        assert message in capsys.readouterr().err
    assert run(sample, "--out", tmp_path / "b", "--transcripts", "--speaker", "me", "--check-with", "nothing") == 2
    assert "--check-with nothing: neither a file nor one of" in capsys.readouterr().err
    (tmp_path / "notes.pt").write_text("no weights")
    options = ("--transcripts", "--speaker", "me", "--workers", "0", "--check-with", tmp_path / "notes.pt")
    assert run(sample, "--out", tmp_path / "c", *options) == 2
    printed = capsys.readouterr().err
    assert f"--check-with {tmp_path / 'notes.pt'}: not a Whisper checkpoint" in printed and "--whisper" not in printed


def test_unknown_languages_of_transcripts_are_counted() -> None:
    codes = dict(zip("abcdef", ["JP", "xx", "sv-SE", "xx", "auto", "q"], strict=True))
    (notice,) = voice._note_unknown_languages(codes)
    assert "unknown languages: 'xx' (2 recordings), 'q' (1 recording); the rows have the language 'auto'" in notice.text
    assert notice.recordings == ("b", "d", "f")
    assert voice._note_unknown_languages({"a": "de", "b": "JP", "c": None}) == []


@pytest.fixture(scope="module")
def interview(sample, tmp_path_factory) -> Path:
    """A folder with two people who speak in turns, each on a channel, and with one sentence on one channel."""
    folder = tmp_path_factory.mktemp("interview") / "in"
    folder.mkdir()
    people = []
    for path in (sample / "rms" / "railway.ogg", sample / "slt" / "harbour.flac"):
        said = json.loads(path.with_name(f"{path.stem}.transcript.json").read_text())[:3]
        samples = load_track(path, probe_recording(path), MASTER_RATE)[0].samples
        people.append([samples[int((one["start"] - 0.3) * MASTER_RATE) : int((one["end"] + 0.3) * MASTER_RATE)] for one in said])
    turns = [piece for one, other in zip(*people, strict=True) for piece in (np.stack([one, 0 * one], 1), np.stack([0 * other, other], 1))]
    turns = turns[:4]
    noise = 1e-4 * np.random.default_rng(0).standard_normal((sum(map(len, turns)), 2))
    soundfile.write(folder / "talk.flac", np.concatenate(turns) + noise, MASTER_RATE)
    soundfile.write(folder / "mono.flac", people[0][2], MASTER_RATE)
    return folder


def test_each_channel_of_an_interview_becomes_a_speaker_or_is_refused(interview, whisper_that_says, tmp_path, capsys) -> None:
    out = tmp_path / "out"
    argv = [
        interview,
        "--out",
        out,
        "--whisper",
        whisper_that_says("Yes."),
        "--speaker-check",
        "none",
        "--language",
        "en",
        "--preset",
        "keep-all",
    ]
    assert run(*argv) == 0
    printed = capsys.readouterr()
    assert "warning: talk.flac: not used: two people on two channels" in printed.err and "--channels split" in printed.err
    assert {row["source"] for row in clips(out)} == {"mono.flac"}
    assert [one["reasons"] for one in rows(out / "rejects.jsonl")] == [["people_on_channels"]]

    assert run(*argv, "--channels", "split", "--speaker", "pod") == 0
    split, summary = clips(out), read_output(out, "summary.json")
    assert {(row["source"], row["speaker"]) for row in split} == {
        ("mono.flac", "pod"),
        ("talk.flac (left)", "pod_left"),
        ("talk.flac (right)", "pod_right"),
    }
    assert summary["channels"] == {"left": 1, "right": 1} and summary["settings"]["channels"] == "split"
    assert [one["channels"] for one in summary["sources"]] == ["mono", "left", "right"]
    assert "channels of recordings with several: 1 left, 1 right" in capsys.readouterr().out
    ends = sorted((row["start"], row["end"]) for row in split if row["speaker"] != "pod")
    assert all(one[1] <= other[0] + 0.3 for one, other in pairwise(ends)), "each sentence is on one channel only"

    assert run(*argv, "--channels", "mix") == 0
    mixed = {row["id"] for row in clips(out) if row["source"] == "talk.flac"}
    assert mixed and mixed.isdisjoint(row["id"] for row in split), "clips of other channels must not take each other's place"


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--channels", "split", "--transcripts"], "--channels split needs --whisper"),
        (["--channels", "0", "--transcripts"], "the number of a channel from 1, not 0"),
        (["--channels", "center", "--transcripts"], "expected auto, left, right, mix, split"),
    ],
)
def test_unusable_channels_are_refused_in_one_sentence(argv, complaint, interview, tmp_path, capsys) -> None:
    assert run(interview, "--out", tmp_path / "out", *argv) == 2
    assert complaint in capsys.readouterr().err
