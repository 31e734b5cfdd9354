"""The verbs of any speech recipe, with a model of tones."""

from __future__ import annotations

from pathlib import Path

import pytest
import soundfile

from overtone.finetune.errors import UserError
from overtone.finetune.recipe import RecipeState
from overtone.recipes.speech.cli.generate import GenerateCommand
from overtone.recipes.speech.cli.verbs import SpeechVerbs, make_inference
from overtone.recipes.speech.sampling_settings import SamplingScheme
from tests.recipes.voice_clone.tones import RATE, TONES, tone_folder

SCHEME = SamplingScheme({"temperature": 1.0}, {}, {"temperature": "how bold"})
COMMAND = GenerateCommand(speech=TONES, scheme=SCHEME)
VERBS = SpeechVerbs(lambda: COMMAND)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tone_folder(tmp_path / "tones")


def test_generate_speaks_with_the_voices_of_the_recipe(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "late.wav"
    assert VERBS.inference.generate(folder, ["--text", "Late.", "--speaker", "low", "--out", str(out)]) == 0
    assert soundfile.info(out).frames == 5 * RATE // 20


def test_samples_name_their_speakers(folder: Path) -> None:
    assert VERBS.inference.sample is not None
    first, second = VERBS.inference.sample(folder, ["Late.", "high|Never."])
    assert first.text.startswith("low, 0.25 s") and second.text.startswith("high, 0.30 s") and first.sound != second.sound


def test_prompts_are_checked_by_the_speakers_of_the_state() -> None:
    class Voices(RecipeState):
        speakers: list[str]

    check, state = VERBS.inference.check_prompts, Voices(speakers=["low"])
    assert check is not None
    check(["Late.", "low|Late."], state)
    with pytest.raises(UserError, match="'high|Late.' names a speaker who is not in the data; speakers: low"):
        check(["high|Late."], state)


def test_the_command_is_imported_from_the_package_of_the_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "toned"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "speech_registration.py").write_text("from tests.recipes.speech.cli.test_verbs import COMMAND\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    speech = make_inference("toned").speech
    assert speech is not None and speech() is TONES


def test_eval_voice_and_serve_look_into_the_folder_first(tmp_path: Path) -> None:
    assert VERBS.inference.evaluate is not None and VERBS.inference.serve is not None
    with pytest.raises(UserError, match="no tones.json in it"):
        VERBS.inference.serve({"me": tmp_path}, [])
    with pytest.raises(UserError, match="no tones.json in it"):
        VERBS.inference.evaluate(tmp_path, ["--data", str(tmp_path / "none.jsonl"), "--greedy"])


@pytest.mark.parametrize(("verb", "option"), [("generate", "--text-file"), ("serve", "--port")])
def test_help_comes_without_a_model(verb: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        VERBS.inference.help[verb]()
    assert end.value.code == 0 and option in capsys.readouterr().out


def test_the_modules_of_a_recipe_are_imported_by_its_verbs_alone() -> None:
    def fail() -> GenerateCommand:
        raise AssertionError("imported")

    verbs = SpeechVerbs(fail)
    assert set(verbs.inference.help) == {"generate", "serve", "ray-serve"} and verbs.inference.example
    with pytest.raises(AssertionError, match="imported"):
        verbs.inference.help["generate"]()
