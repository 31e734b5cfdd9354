"""The README is true: its commands run on small inputs, and the tests that the page of proofs names exist."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile

from overtone.finetune.recipe import built_in_recipes
from overtone.finetune.storage import demo_models
from overtone.finetune.storage.synthetic_audio_mark import read_synthetic_mark
from overtone.recipes.voice_clone.model import tiny_checkpoint
from tests.launch.launching import ALONE, ROOT
from workshop.benchmarks import _pages
from workshop.demo_models import readme_sounds

README = (ROOT / "README.md").read_text(encoding="utf-8")
LAB_BOOK = ROOT / "workshop" / "lab_book"
PROOFS = (LAB_BOOK / "proofs.md").read_text(encoding="utf-8")
STEPS = ["overtone voice", "overtone codes", "overtone train", "overtone export", "overtone generate"]


def test_a_stranger_reads_it_in_minutes() -> None:
    assert len(README.split()) <= 1200, "move details to docs/"


def test_every_recipe_has_a_row() -> None:
    assert {*re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE)} == {*built_in_recipes()}


def blocks() -> list[list[str]]:
    return [block.strip().splitlines() for block in re.findall(r"^```\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)]


def own_voice() -> list[str]:
    return next(block for block in blocks() if "overtone voice" in block[0])


def small(command: str, home: Path) -> list[str]:
    """The same command on small things: one recording of the sample with its transcript, a tiny model, two steps, its own folders."""
    replaced = {
        "my_recordings/": str(home / "recordings"),
        "--whisper small": "--transcripts",
        "Qwen/Qwen3-TTS-12Hz-1.7B-Base": str(home / "base"),
        "data/me": str(home / "data"),
        "runs/voice_clone": str(home / "run"),
        "exports/me": str(home / "export"),
        "hello.wav": str(home / "hello.wav"),
    }
    for said, instead in replaced.items():
        command = command.replace(said, instead)
    words = shlex.split(command)
    if "train" in words:
        words += ["--config", "recipes/voice_clone/debug.yaml", "--model.source", str(home / "base"), "--run.dir", str(home / "run")]
        words += ["--train.steps", "2"]
    if "generate" in words:
        words += ["--max-seconds", "2"]
    return [str(Path(sys.executable).parent / words[0]), *words[1:]]


@pytest.mark.ci
@pytest.mark.slow
def test_the_five_commands_run_in_order(tmp_path: Path) -> None:
    commands = own_voice()
    assert len(commands) == 5 and all(part in command for part, command in zip(STEPS, commands, strict=True))
    tiny_checkpoint.build(tmp_path / "base")
    (tmp_path / "recordings").mkdir()
    for file in sorted((demo_models.data_folder() / "sample" / "slt").glob("kitchen.*")):
        shutil.copy(file, tmp_path / "recordings")
    for command in commands:
        done = subprocess.run(small(command, tmp_path), cwd=ROOT, env=ALONE, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    assert soundfile.info(tmp_path / "hello.wav").frames > 0


def test_the_hint_for_several_gpus_names_a_launch_file() -> None:
    assert "`overtone train --launch fsdp2 …`" in README  # tests/finetune/test_launcher.py starts real processes with --launch
    assert (ROOT / "configs" / "fsdp2.yaml").is_file() and "MINUTES" not in README


def test_the_commands_for_chats_are_those_that_a_test_runs() -> None:
    prepare, train, export, chat = next(block for block in blocks() if "overtone text" in block[0])
    page = (ROOT / "docs" / "first_sft.md").read_text(encoding="utf-8").splitlines()  # tests/test_first_sft.py runs its commands
    assert {prepare, export, chat} <= set(page)
    assert any(line.startswith(train) for line in page)


def test_the_commands_to_listen_stand_on_the_pages_of_their_verbs() -> None:
    commands = next(block for block in blocks() if "--text-file" in block[0])
    assert len(commands) == 3
    for command, page in zip(commands, ("generation", "evaluation", "serving"), strict=True):
        assert command in (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").splitlines()


def test_the_make_targets_exist() -> None:
    targets = [line.split("#")[0].split()[1] for line in next(block for block in blocks() if block[0].startswith("make "))]
    assert targets == ["demo", "demo-llm", "test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in targets)


def test_every_linked_page_exists() -> None:
    linked = [ROOT / name for name in re.findall(r"\]\(([\w/.-]+\.(?:md|png))\)", README)]
    linked += [LAB_BOOK / name for name in re.findall(r"\]\(([\w/.-]+\.md)\)", PROOFS)]
    assert len(linked) >= 11 and [page for page in linked if not page.exists()] == []


def test_every_guarantee_names_tests_or_a_page() -> None:
    rows = [row.split(" | ")[-1] for row in re.findall(r"^\| (?!guarantee|---)(.*) \|$", PROOFS, flags=re.MULTILINE)]
    assert len(rows) >= 13 and all("tests/" in row or "](" in row for row in rows)
    named = re.findall(r"`((?:workshop/)?tests/[\w/.]+)`", PROOFS)
    assert len(named) >= 13 and [name for name in named if not (ROOT / name).exists()] == []


def test_the_demo_s_table_is_that_of_its_page() -> None:
    page = (LAB_BOOK / "demos.md").read_text(encoding="utf-8")
    for row, system in (
        ("recordings, through the codec", "through the codec"),
        ("base, which clones a clip", "before"),
        ("after training", "after"),
    ):
        printed = re.search(rf"^{system} +([\d.]+)% +[\d.]+% +([\d.]+) +([\d.]+) ", page, re.MULTILINE)
        assert printed is not None
        released = re.search(rf"^\| {system} \| {printed[1]} % \| ([\d.]+ %) \|", page, re.MULTILINE)
        assert released is not None and f"| {row} | {printed[1]} % | {released[1]} | {printed[2]} | {printed[3]} |" in README


def test_the_sounds_have_the_text_of_their_recording_and_are_marked_as_synthetic() -> None:
    part = README.partition(readme_sounds.START)[2].partition(readme_sounds.END)[0]
    (text,) = re.findall(r'^All three say: "(.+)"$', part, re.MULTILINE)
    recording, *sounds = (ROOT / link for link in re.findall(r"^\| \[[^]]+\]\(([\w./]+\.ogg)\) \|", part, re.MULTILINE))
    rows = [json.loads(line) for line in (recording.parents[1] / "held_out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert text in [row["text"] for row in rows if row["audio"] == f"held_out/{recording.name}"]
    assert [sound.relative_to(ROOT).as_posix() for sound in sounds] == [*readme_sounds.SOUNDS.values()]
    assert all(read_synthetic_mark(sound) is not None for sound in sounds), "run workshop/demo_models/readme_sounds.py"


def test_the_measured_tables_are_those_of_the_benchmarks() -> None:
    made = _pages.results()
    assert {table.stem for table in made} == {path.stem for path in (ROOT / "workshop" / "benchmarks").glob("[a-z]*.py")} and len(made) >= 3
    assert (LAB_BOOK / "benchmarks.md").read_text(encoding="utf-8") == _pages.list_benchmarks(), "run workshop/benchmarks/_pages.py"
    assert (ROOT / "docs" / "models.md").read_text(encoding="utf-8") == _pages.models_page(), "run workshop/benchmarks/_pages.py"
    architectures = (LAB_BOOK / "architectures.md").read_text(encoding="utf-8")
    assert architectures == _pages.architectures_page(), "run workshop/benchmarks/_pages.py"
    plan = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")
    assert _pages.with_hardware(plan) == plan and plan.count("Qwen3-TTS-12Hz-1.7B-Base |") == 2, "run workshop/benchmarks/_pages.py"
