"""The verbs of a speech model work with CSM: generate, serve, eval-voice, and samples during training."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from overtone.recipes.csm.recipe import RECIPE
from overtone.recipes.csm.speech_registration import COMMAND, SPEECH
from overtone.recipes.serving.access_control import AccessPolicy
from overtone.recipes.speech.evaluation import samples_during_training, systems
from overtone.recipes.speech.interface import SpeechSampling, Voice, VoiceFolder
from overtone.recipes.speech.serving.openai_api import Limits
from overtone.recipes.speech.serving.request_queue import SpeechQueue
from overtone.recipes.speech.serving.serve_command import build_app
from overtone.recipes.speech.serving.uploaded_clips import Clips
from tests.asgi import HOME, JSON, App
from tests.recipes.csm.tiny_csm import LearnedCsm

ROOT = Path(__file__).resolve().parents[3]


def test_generate_speaks_a_memorized_clip_and_streams_it(learned: LearnedCsm, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = learned.rows[3]
    argv = ["--text", row["text"], "--speaker", row["speaker"], "--greedy"]
    for name, more in (("whole.wav", []), ("grown.wav", ["--stream"])):
        assert RECIPE.inference.generate(learned.folder, [*argv, *more, "--out", str(tmp_path / name)]) == 0
        seconds = len(row["audio_codes"]) / 12.5
        assert capsys.readouterr().out == f"{tmp_path / name}: {seconds:.2f} s, bob, language english\n"
    (whole, rate), (grown, _) = (soundfile.read(tmp_path / name, dtype="int16") for name in ("whole.wav", "grown.wav"))
    assert rate == 24000 and len(whole) == 1920 * len(row["audio_codes"]) and np.abs(whole.astype(int) - grown).max() <= 33


def test_generate_has_the_sampling_options_of_csm(learned: LearnedCsm, tmp_path: Path) -> None:
    out, argv = tmp_path / "a.wav", ["--text", "New words.", "--speaker", "ann", "--max-seconds", "0.4"]
    found = []
    for more in ("", "--seed 1", "--seed 1 --top-k 1", "--seed 2 --top-k 1 --depth-decoder-top-k 1", "--greedy"):
        RECIPE.inference.generate(learned.folder, [*argv, *more.split(), "--out", str(out)])
        found.append(out.read_bytes())
    assert len(set(found)) == 4 and found[3] == found[4], "one candidate for all codebooks is greedy"


def test_samples_of_a_run_are_spoken(learned: LearnedCsm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samples_during_training, "SAMPLING", SpeechSampling(max_seconds=2.0))
    first, second = RECIPE.inference.sample(learned.folder, [learned.rows[0]["text"], f"Bob|{learned.rows[2]['text']}"])
    assert first.text.startswith("ann, ") and second.text.startswith("bob, ") and first.sound != second.sound


def test_a_voice_is_evaluated(learned: LearnedCsm, tiny: Path, tmp_path: Path) -> None:
    """Beside its base, which clones the voice of the row's reference clip by the transcript in the row."""
    rng = np.random.default_rng(0)
    for name in ("own.flac", "ref.flac"):
        soundfile.write(tmp_path / name, 0.1 * rng.standard_normal(24000), 24000)
    row = learned.rows[0]
    own = {"text": row["text"], "speaker": "Ann", "audio": "own.flac", "language": "english"}
    rows = [own | {"ref_audio": "ref.flac", "ref_text": "It is."}]
    data, out = tmp_path / "val.jsonl", tmp_path / "evaluation"
    data.write_text("".join(json.dumps(one) + "\n" for one in rows))
    argv = ["--data", str(data), "--base", str(tiny), "--greedy", "--max-seconds", "2", "--out", str(out)]
    assert RECIPE.inference.evaluate(learned.folder, argv) == 0
    found = json.loads((out / "evaluation.json").read_text())
    assert list(found["figures"]) == [systems.RECORDINGS, learned.folder.name, f"{tiny.name}, zero-shot"]
    assert found["figures"][learned.folder.name]["all"]["runaways"] == 0
    wave, _ = soundfile.read(next((out / "clips" / learned.folder.name).glob("*.flac")))
    assert len(wave) == 1920 * len(row["audio_codes"])


def test_a_voice_is_served(learned: LearnedCsm, tmp_path: Path) -> None:
    speech = SpeechQueue({"tuned": SPEECH.inspect(learned.folder).open()}, room=2)
    clips = Clips(tmp_path / "clips")
    app = App(build_app(speech, Limits(chars=50, seconds=2), AccessPolicy(None, local=True), clips), (HOME, JSON))
    try:
        body: dict[str, Any] = {"model": "tuned", "voice": "ann", "input": "Hi.", "response_format": "pcm", "seed": 1}
        answer = app.ask("POST", "/v1/audio/speech", json.dumps(body).encode())
        assert answer.status == 200 and len(answer.body) % (2 * 1920) == 0 and len(answer.body) > 0
        refused = app.ask("POST", "/v1/audio/speech", json.dumps(body | {"voice": "zoe"}).encode())
        assert refused.status == 400 and b"tuned has ann, bob" in refused.body
        refused = app.ask("POST", "/v1/audio/speech", json.dumps(body | {"language": "german"}).encode())
        assert refused.status == 400 and b"CSM speaks only english" in refused.body
    finally:
        app.close()
        speech.close()
        clips.close()


def test_trained_speakers_come_from_the_state_of_a_checkpoint(learned: LearnedCsm) -> None:
    assert SPEECH.trained_speakers(learned.ready.loaded.state.as_json()) == ["ann", "bob"]
    assert set(COMMAND.help) == {"--language", "--reference", "--reference-text"}


def test_help_imports_no_torch() -> None:
    code = (
        "import sys; from overtone.recipes.csm.speech_registration import COMMAND\n"
        "try: COMMAND.parse(['--help'])\nfinally: assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and "--depth-decoder-top-k" in done.stdout


def test_the_classes_implement_the_protocols(learned: LearnedCsm) -> None:
    with closing(SPEECH.inspect(learned.folder).open()) as voice:
        for protocol, ours in ((Voice, voice), (VoiceFolder, SPEECH.inspect(learned.folder))):
            names = {name for name in vars(protocol) if not name.startswith("_")}
            assert len(names) >= 4 and not {name for name in names if not hasattr(ours, name)}


@pytest.mark.slow
def test_a_ray_cluster_that_loses_a_worker_speaks_as_one_process(learned: LearnedCsm, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    from tests.launch import ray_generation, ray_nodes

    with ray_nodes.cluster(2) as nodes:
        ray_generation.check_speech(nodes, tmp_path, learned.folder, "csm", "--speaker", "ann", "--max-seconds", "2")
        ray_generation.check_evaluation(nodes, tmp_path, learned.folder, "csm", "ann")
