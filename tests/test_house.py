"""The house keeps its rules, and each rule is shown one house that breaks it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import distributions, packages_distributions
from pathlib import Path

import pytest

import overtone.__main__
from overtone.finetune.config import Config, Section
from overtone.finetune.config_key_descriptions import fields
from overtone.finetune.recipe import find_recipe, load_recipe
from tests import house

ROOT = Path(__file__).parents[1]
HOUSE = house.read_house(ROOT)
WORKSHOP = ROOT / "workshop"
RECIPES = sorted(path.parent.name for path in (ROOT / "recipes").glob("*/recipe.py"))
VERBS = [f"overtone {verb}" for group in overtone.__main__.GROUPS.values() for verb in group]

ALLOWED_WRITES: dict[str, str] = {
    "data_prep/audio/sandboxed_decoder.py: one.open": "filled by the decoder's process, in a folder that `files.new_folder` renames",
    "data_prep/audio/sandboxed_decoder.py: other.open": "the same at the second rate",
    "finetune/storage/demo_models.py: zipfile.ZipFile": "packs into memory",
    "data_prep/transcription/demo_whisper.py: torch.save": "the format of Whisper's checkpoints, into memory",
    "recipes/whisper/exporting/format_conversion.py: torch.save": "the same",
    "recipes/speech/serving/audio_encoding.py: av.open": "encodes into memory",
    "recipes/speech/marked_audio_encoding.py: soundfile.SoundFile": "the same",
    "data_prep/audio/waveform.py: soundfile.SoundFile": "the same",
    "recipes/llm_grpo/rewards/reward_process.py: os.fdopen": "a copy of standard output",
}
"""`path: call` → why it may touch the disk without `overtone.finetune.storage.files`."""

MESSAGES, OURS, MODELS = "messages between own processes", "written by this program", "of a model's folder"
ALLOWED_JSON: dict[str, str] = {
    "data_prep/audio/sandboxed_decoder.py": MESSAGES,
    "finetune/checkpointing/checkpoint_metadata.py": "read into types, with bounds of its own",
    "finetune/checkpointing/remote_copies.py": OURS,
    "finetune/monitoring/collective_progress.py": "what torch's own recorder returns",
    "finetune/monitoring/run_records.py": OURS,
    "finetune/exporting/export.py": OURS,
    "finetune/monitoring/rank_failure_detection.py": MESSAGES,
    "finetune/checkpointing/remote_lease.py": OURS,
    "finetune/storage/model_security.py": MODELS,
    "finetune/training/sampling_process.py": MESSAGES,
    "finetune/checkpointing/rank_shards.py": OURS,
    "finetune/storage/demo_models.py": OURS,
    "finetune/distributed/process_group.py": MESSAGES,
    "recipes/language/gguf/tokenizer_check.py": "what the tokenizers package makes of a tokenizer that it has loaded",
    "recipes/llm_dpo/demo.py": OURS,
    "recipes/llm_grpo/demo.py": OURS,
    "recipes/llm_grpo/rewards/reward_process.py": MESSAGES,
    "recipes/llm_grpo/rewards/reward_process_client.py": MESSAGES,
    "recipes/llm_sft/demo.py": OURS,
    "recipes/llm_sft/toy_tokenizer.py": OURS,
    "recipes/llm_sft/model/tiny_checkpoint.py": OURS,
    "recipes/voice_clone/demo/comparison_clips.py": OURS,
    "recipes/voice_clone/demo/demo_metrics.py": OURS,
    "recipes/voice_clone/model/speaker_vectors.py": OURS,
    "recipes/voice_clone/model/tiny_checkpoint.py": OURS,
}
"""Path → what it parses with Python's own reader of JSON; what people wrote goes through `overtone.finetune.storage.strict_json`, YAML
through
`overtone.finetune.config_sources`."""


def test_the_listings_found_the_house() -> None:
    assert len(HOUSE) >= 30
    assert {path.partition("/")[0] for path in HOUSE} == {house.TOP, *house.PACKAGES}
    assert "voice_clone" in RECIPES and len(RECIPES) >= 1
    assert len(VERBS) >= 25


def lint_imports(root: Path) -> tuple[int, str]:
    """Exit code and output of import-linter for the package `overtone` in `root`, with the contracts of pyproject.toml."""
    command = [Path(sys.executable).with_name("lint-imports"), "--no-logo", "--no-cache", ROOT / "pyproject.toml"]
    environment = {**os.environ, "PYTHONPATH": str(root), "COLUMNS": "300"}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=100)
    return done.returncode, done.stdout + done.stderr


def test_imports_keep_their_contracts() -> None:
    code, output = lint_imports(ROOT)
    assert code == 0 and "Contracts: 5 kept, 0 broken." in output, output
    assert int(re.findall(r"(\d+) dependencies", output)[0]) > 2000, "the graph was read"
    assert house.imports_of_packages_above(HOUSE) == []


FAULTS: dict[str, tuple[str, str]] = {
    "finetune/attic.py": ("", "overtone.finetune.attic"),
    "finetune/config.py": ("from overtone.finetune.training import loop", "overtone.finetune.config -> overtone.finetune.training.loop"),
    "finetune/storage/files.py": (
        "def f():\n    import overtone.finetune.distributed.process_group",
        "overtone.finetune.storage.files -> overtone.finetune.distributed.process_group",
    ),
    "finetune/distributed/sharding.py": ("from ..train import main", "overtone.finetune.distributed.sharding -> overtone.finetune.train"),
    "finetune/training/loop.py": (
        "import overtone.recipes.csm.recipe",
        "overtone.finetune.training.loop -> overtone.recipes.csm.recipe",
    ),
    "finetune/training/step.py": (
        "from overtone.data_prep.audio import waveform",
        "overtone.finetune.training.step -> overtone.data_prep.audio.waveform",
    ),
    "finetune/training/run.py": ("from overtone import train", "overtone.finetune.training.run -> overtone "),
    "finetune/cli/train.py": ("from overtone.__main__ import main", "overtone.finetune.cli.train -> overtone.__main__"),
    "data_prep/audio/waveform.py": (
        "from overtone.finetune.distributed.process_group import join",
        "overtone.data_prep.audio.waveform -> overtone.finetune.distributed.process_group",
    ),
    "data_prep/audio/loudness.py": (
        "import overtone.recipes.csm.recipe",
        "overtone.data_prep.audio.loudness -> overtone.recipes.csm.recipe",
    ),
    "recipes/csm/options.py": (
        "from overtone.recipes.llm_sft import options",
        "overtone.recipes.csm.options -> overtone.recipes.llm_sft.options",
    ),
    "recipes/demo_runner.py": (
        "from overtone.recipes.csm import options",
        "overtone.recipes.demo_runner -> overtone.recipes.csm.options",
    ),
    "recipes/speech/interface.py": (
        "from overtone.recipes.codec_lm import options",
        "overtone.recipes.speech.interface -> overtone.recipes.codec_lm.options",
    ),
    "data_prep/chats/cycle.py": ("from overtone.data_prep.chats import cycle_end", "No cycles are allowed in overtone.data_prep.chats."),
    "data_prep/chats/cycle_end.py": ("from overtone.data_prep.chats import cycle", "- .cycle"),
}
"""Path → a line to add, and how import-linter describes the fault."""


def test_an_import_against_a_contract_is_seen(tmp_path: Path) -> None:
    shutil.copytree(ROOT / house.TOP, tmp_path / house.TOP, copy_function=os.symlink)
    for path, (line, _) in FAULTS.items():
        place = tmp_path / house.TOP / path
        place.unlink(missing_ok=True)
        place.write_text(f"{HOUSE.get(path, '')}\n{line}\n")
    code, output = lint_imports(tmp_path)
    assert code == 1 and "Contracts: 0 kept, 5 broken." in output, output
    assert [described for _, described in FAULTS.values() if described not in output] == [], output


def test_an_import_of_the_own_package_is_seen() -> None:
    broken = {
        "data_prep/a/b.py": "from overtone.data_prep.a import x\nfrom overtone.data_prep.a import c",
        "data_prep/a/c.py": "from . import y, b",
        "recipes/d.py": "from overtone import __version__\nfrom overtone.version import __version__\nfrom overtone import recipes",
    }
    assert house.imports_of_packages_above(broken) == [
        "data_prep/a/b.py:1: imports overtone.data_prep.a, which it is in",
        "data_prep/a/c.py:1: imports overtone.data_prep.a, which it is in",
        "recipes/d.py:1: imports overtone, which it is in",
    ]


def test_no_module_hides_another() -> None:
    dependencies = frozenset(packages_distributions())
    assert len(dependencies) > 60 and {"torch", "accelerate", "whisper"} <= dependencies
    assert house.forbidden_names(HOUSE, dependencies - set(house.PACKAGES)) == []


def test_a_module_that_hides_another_is_seen() -> None:
    broken = ["finetune/logging.py", "data_prep/whisper.py", "recipes/a/utils.py", "finetune/codecs/a.py", "data_prep/misc/a.py"]
    sound = ["finetune/__main__.py", "recipes/a/whisper.py", "data_prep/segmentation/vad.py"]
    complaints = house.forbidden_names(dict.fromkeys(broken + sound, ""), frozenset({"whisper"}))
    assert [complaint.partition(":")[0] for complaint in complaints] == broken


def test_a_role_of_a_recipe_has_one_file_name() -> None:
    assert house.misplaced_roles(HOUSE) == []


def test_a_role_with_another_file_is_found() -> None:
    found = house.misplaced_roles(
        {
            "recipes/mine/recipe.py": "RECIPE = 1",
            "recipes/mine/inference/sampling_settings.py": "",
            "recipes/mine/exporting/plan.py": "def plan_export(): ...",
            "recipes/mine/demo/decoding.py": "",
            "recipes/speech/decoding/model_card.py": "",
        }
    )
    assert found == [
        "recipes/mine/inference/sampling_settings.py: belongs at recipes/mine/model/sampling_settings.py, as in every recipe",
        "recipes/mine/exporting/plan.py: defines plan_export, which belongs in recipes/mine/exporting/export_plan.py",
    ]


def test_class_names_are_unique() -> None:
    assert house.repeated_class_names(HOUSE) == []


def test_a_repeated_class_name_is_seen() -> None:
    found = house.repeated_class_names({"a.py": "class Row: ...\nclass _Own: ...", "b.py": "class Row: ...\nclass _Own: ..."})
    assert found == ["Row: a.py, b.py"]


def test_every_source_file_has_its_test() -> None:
    tests = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    assert len(tests) >= 20
    assert house.missing_tests(HOUSE, tests) == []
    makers = {path.relative_to(WORKSHOP).as_posix(): path.read_text(encoding="utf-8") for path in (WORKSHOP / "demo_models").rglob("*.py")}
    their_tests = {path.relative_to(WORKSHOP).as_posix() for path in (WORKSHOP / "tests").rglob("test_*.py")}
    assert len(makers) >= 25
    assert house.missing_tests(makers, their_tests) == []


def test_a_missing_test_is_seen() -> None:
    free = {"recipes/b/__init__.py": "X = 1", "finetune/__main__.py": "def f(): ..."}
    broken = {"finetune/training/loop.py": "", "recipes/a/recipe.py": "", "recipes/a/__init__.py": "def f(): ..."}
    (first, second) = house.missing_tests(free | broken, {"tests/finetune/training/test_loop.py"})
    assert first == "recipes/a/recipe.py: has no tests/recipes/a/test_recipe.py"
    assert second.startswith("recipes/a/__init__.py: has no ")


def test_tests_and_the_workshop_import_what_exists() -> None:
    importers = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for folder in ("tests", "workshop")
        for path in sorted((ROOT / folder).rglob("*.py"))
    }
    assert len(importers) > 400
    assert house.imports_of_missing_names(HOUSE, HOUSE | importers) == []
    assert house.bare_imports(HOUSE | importers) == []


def test_an_import_of_a_missing_name_is_seen() -> None:
    product = {"finetune/a.py": "if 1:\n    X: int = 1\ndef f():\n    hidden = 1", "finetune/b/c.py": "from x import y as z"}
    product["overtone/__main__.py"] = "def main(): ..."
    sound = "from overtone.finetune.a import X, f\nfrom overtone.finetune.b.c import z\n"
    sound += "from overtone.finetune import a, b\nfrom torch import nothing"
    broken = "from overtone.finetune.a import hidden\nfrom overtone.finetune.b import d\n"
    broken += "from overtone.recipes.none import X\nfrom overtone.finetune.b.c import y\nfrom overtone.__main__ import main, gone"
    found = house.imports_of_missing_names(product, {"tests/sound.py": sound, "tests/broken.py": broken})
    assert found == [
        "tests/broken.py:1: overtone.finetune.a has no hidden",
        "tests/broken.py:2: overtone.finetune.b has no d",
        "tests/broken.py:3: overtone.recipes.none has no X",
        "tests/broken.py:4: overtone.finetune.b.c has no y",
        "tests/broken.py:5: overtone.__main__ has no gone",
    ]


def test_an_import_past_the_one_name_is_seen() -> None:
    engine, recipe = "finetune.config", "recipes.csm"
    source = f"from {engine} import Config\nimport json, {recipe}\nfrom overtone.data_prep import manifest\nfrom . import recipes"
    assert house.bare_imports({"tests/a.py": source}) == [
        f"tests/a.py:1: imports {engine}; import overtone.{engine}",
        f"tests/a.py:2: imports {recipe}; import overtone.{recipe}",
    ]


def test_nothing_runs_what_came_as_data() -> None:
    assert house.dangerous_calls(HOUSE) == []


@pytest.mark.parametrize(
    "source",
    [
        "run = eval",
        "run = exec",
        "compile(text)",
        "__import__(name)",
        "subprocess.run(text, shell=wanted)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "AutoModel.from_pretrained(name, trust_remote_code=trusted)",
        "spec.loader.exec_module(module)",
        "options = {'trust_remote_code': True}",
        "np.load(path, allow_pickle=True)",
        "load(path, weights_only=False)",
    ],
)
def test_running_data_is_seen(source: str) -> None:
    assert len(house.dangerous_calls({"finetune/a.py": source})) == 1


BANNED = [
    "import torch\ntorch.load(path)",
    "from torch import load",
    "import torch\ntorch.jit.script(model)",
    "import pickle",
    "from cloudpickle import loads",
    "import yaml\nyaml.load(text, Loader=yaml.SafeLoader)",
    "import yaml\nread = yaml.unsafe_load",
    "eval(text)",
    "exec(text)",
    "import os\nos.system(text)",
    "from os import popen",
    "import subprocess\nsubprocess.run(text, shell=True)",
    "import importlib\nimportlib.import_module(name)",
    "import importlib.util\nimportlib.util.spec_from_file_location(name, path)",
    "import runpy\nrunpy.run_path(path)",
    "import torch.distributed as dist\ndist.all_gather_object(out, value)",
    "import sys\nsys.stdout.write(text)",
    "import sys\nsys.__stderr__.writelines(texts)",
    "import traceback\ntraceback.print_exc()",
    "import logging\nlogging.basicConfig()",
]
"""What ruff finds with the rules of pyproject.toml."""


def test_what_ruff_must_find_is_found(tmp_path: Path) -> None:
    for number, source in enumerate(BANNED):
        (tmp_path / f"module_{number}.py").write_text(f"{source}\n")
    options = ["--config", ROOT / "pyproject.toml", "--no-cache", "--output-format", "json"]
    command = [Path(sys.executable).with_name("ruff"), "check", *options, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    found = {
        Path(fault["filename"]).stem for fault in json.loads(done.stdout) if fault["code"] == "TID251" or fault["code"].startswith("S")
    }
    assert [source for number, source in enumerate(BANNED) if f"module_{number}" not in found] == []


def test_every_exception_is_still_needed() -> None:
    calls = {f"{path}: {call}" for path, call in house.ALLOWED_DANGERS}
    strict = dict.fromkeys(HOUSE, "")
    found = set()
    for path in {path for path, _ in house.ALLOWED_DANGERS}:
        without = house.dangerous_calls({**strict, f"elsewhere/{path}": HOUSE[path]})
        found |= {f"{path}: {line.rpartition(': ')[2]}" for line in without}
    assert calls <= found


def test_models_are_loaded_through_the_gate_alone() -> None:
    assert sum("from_pretrained(" in source for source in HOUSE.values()) >= 6, "the rule sees real loaders"
    assert house.ungated_loaders(HOUSE) == []


@pytest.mark.parametrize(
    "source",
    [
        "AutoModel.from_pretrained(folder, trust_remote_code=False)",
        "with admit(folder, KIND) as clean:\n    AutoModel.from_pretrained(folder, trust_remote_code=False)",
        "with admit(folder, KIND) as clean:\n    AutoModel.from_pretrained(clean)",
        "with admit(folder, KIND) as clean:\n    pass\nAutoModel.from_pretrained(clean, trust_remote_code=False)",
        "with other(folder) as clean:\n    AutoModel.from_pretrained(clean, trust_remote_code=False)",
        "load = AutoModel.from_pretrained",
    ],
)
def test_a_loader_past_the_gate_is_seen(source: str) -> None:
    assert len(house.ungated_loaders({"finetune/a.py": source})) == 1


def test_a_loader_behind_the_gate_is_left_alone() -> None:
    source = "with admit(folder, KIND) as clean:\n    AutoModel.from_pretrained(clean, trust_remote_code=False)"
    assert house.ungated_loaders({"finetune/a.py": source}) == []


def test_what_only_looks_dangerous_is_left_alone() -> None:
    harmless = (
        "model.eval()\njson.load(file)\nyaml.safe_load(text)\nsubprocess.run([text])\nnp.load(path, allow_pickle=False)\n"
        "re.compile(text)\nclass Config:\n    eval: Eval = Eval()"
    )
    assert house.dangerous_calls({"finetune/a.py": harmless}) == []


def test_the_disk_is_changed_in_one_place() -> None:
    writes = {f"{line.split(':')[0]}: {line.split(': ')[1]}" for line in house.disk_writes(HOUSE)}
    assert writes == set(ALLOWED_WRITES)
    assert house.disk_writes({"elsewhere.py": HOUSE[house.DISK_OWNERS[0]]}), "the owner does write, so the rule sees real code"


def test_files_of_users_are_opened_in_one_place() -> None:
    assert house.bare_reads(HOUSE) == [], "use finetune/storage/input_files.py"
    unguarded = {f"finetune/own/{path}": HOUSE[path] for path in house.OWN_READERS}
    seen = {line.partition(":")[0].removeprefix("finetune/own/") for line in house.bare_reads(unguarded)}
    assert seen == set(house.OWN_READERS), "an exception that reads nothing can go"


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("path.read_bytes()\n(a / b).read_text(encoding='utf-8')\nopen(path)\npath.open('rb')\npath.open(encoding='utf-8')", 5),
        ("gzip.GzipFile(path)\nplace(path).read_text()", 2),
        ("input_files.read_text(path)\n(FOLDER / 'page.js').read_text()\nPAGE.read_text()\nvoice.open()\npath.open('wb')", 0),
        ("gzip.GzipFile(fileobj=file)\nsystem.open(place, mode='wb')", 0),
    ],
)
def test_a_bare_read_is_seen(source: str, count: int) -> None:
    assert len(house.bare_reads({"finetune/a.py": source})) == count
    assert house.bare_reads({house.INPUT_OWNER: source}) == []


def test_what_people_wrote_is_parsed_by_the_strict_readers() -> None:
    found = house.lenient_readers(HOUSE)
    assert [each for each in found if each.partition(": ")[0] not in ALLOWED_JSON or "yaml" in each] == []
    assert len(found) > 10, "the rule sees real code"


def test_parsers_complete_no_flags() -> None:
    assert house.abbreviating_parsers(HOUSE) == []


def test_a_parser_that_completes_flags_is_seen() -> None:
    broken = {
        "a.py": "argparse.ArgumentParser('a')\nArgumentParser(allow_abbrev=True)",
        "b.py": "argparse.ArgumentParser(allow_abbrev=False)",
    }
    assert [each.partition(": ")[0] for each in house.abbreviating_parsers(broken)] == ["a.py:1", "a.py:2"]


def test_lines_end_at_line_feeds_alone() -> None:
    assert house.loose_line_ends(HOUSE) == [], "use overtone.finetune.storage.text_lines"


def test_a_loose_line_end_is_seen() -> None:
    sources = [
        "text.splitlines()",
        "path.read_text().split('\\n')",
        "with path.open() as file:\n    for line in file: pass",
        "with path.open('r', encoding='utf-8') as file:\n    a = [line for line in enumerate(file)]",
    ]
    broken = {f"finetune/a{number}.py": source for number, source in enumerate(sources)}
    assert [each.partition(":")[0] for each in house.loose_line_ends(broken)] == list(broken)
    sound = "with path.open('rb') as file:\n    for line in file: pass\nread_lines(path)\ntext.split('\\n')"
    assert house.loose_line_ends({"finetune/a.py": sound}) == []


def test_a_lenient_reader_is_seen() -> None:
    sources = ["json.loads(line)", "map(json.loads, lines)", "json.load(file)", "yaml.safe_load(text)", "yaml.compose(text)"]
    broken = {f"finetune/a{number}.py": source for number, source in enumerate(sources)}
    assert [each.partition(": ")[0] for each in house.lenient_readers(broken)] == list(broken)
    assert (
        house.lenient_readers({house.STRICT_READERS[0]: "json.loads(text)", "finetune/a.py": "strict_json.loads(text)\njson.dumps(1)"})
        == []
    )


@pytest.mark.parametrize(
    "source",
    [
        "open(path, 'w')",
        "path.open(mode='ab')",
        "path.open('r+b')",
        "Path(a).write_text(text)",
        "path.unlink(missing_ok=True)",
        "path.replace(other)",
        "path.mkdir(parents=True)",
        "os.replace(a, b)",
        "shutil.rmtree(path)",
        "shutil.copyfile(a, b)",
        "tempfile.mkdtemp()",
        "np.save(path, array)",
        "np.memmap(path, mode='w+')",
        "torch.save(model, path)",
        "save_file(tensors, path)",
        "model.save_pretrained(path)",
        "soundfile.write(path, wave, 24000)",
        "figure.savefig(path)",
    ],
)
def test_a_write_past_the_owner_is_seen(source: str) -> None:
    assert len(house.disk_writes({"finetune/a.py": source})) == 1
    assert house.disk_writes({house.DISK_OWNERS[0]: source}) == []


def test_what_only_looks_like_a_write_is_left_alone() -> None:
    harmless = (
        "buffer = io.BytesIO()\nnp.save(buffer, array)\nsoundfile.write(buffer, wave, 24000)\nfigure.savefig(buffer)\n"
        "open(path)\npath.open('rb')\nfiles.write_text(path, text)\nfiles.write_bytes(path, data)\n"
        "save(tensors)\nself.saver.save(step)\ntext.replace('a', 'w')\ndataclasses.replace(place, step=1)\nsys.stdout.write(text)"
    )
    assert house.disk_writes({"finetune/a.py": harmless}) == []


def test_every_import_is_declared() -> None:
    assert (
        house.undeclared_imports(
            HOUSE,
            # torch's CUDA builds bring triton along, in exactly the release that they want; the one module that imports it is for them.
            _declared_modules(
                "speech", "qwen-tts", "snac", "faster-whisper", "text", "liger", "qlora", "ray", "review", "serve", "align", "rewards"
            )
            | {"triton"},
        )
        == []
    )


def test_an_undeclared_import_is_seen() -> None:
    source = "import json, numpy.linalg\nfrom . import b\nfrom overtone.finetune import files\ndef f():\n    from left_pad import pad"
    assert house.undeclared_imports({"finetune/a.py": source}, frozenset({"numpy"})) == ["finetune/a.py:5: left_pad is not declared"]


def test_tests_count_what_they_list() -> None:
    tests = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")}
    assert len(tests) >= 20
    assert house.uncounted_listings(tests) == []


def test_an_uncounted_listing_is_seen() -> None:
    listing = "FOUND = list(ROOT.glob('*'))\n@pytest.mark.parametrize('path', FOUND)\ndef test_one(path): assert path\n"
    assert len(house.uncounted_listings({"tests/test_a.py": listing})) == 1
    assert house.uncounted_listings({"tests/test_a.py": listing + "def test_all(): assert len(FOUND) == 3\n"}) == []


def test_ids_of_parameters_are_stable() -> None:
    tests = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")}
    assert sum("parametrize(" in source for source in tests.values()) >= 50
    assert house.unstable_parameters(tests) == []


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ("[gzip.compress(b'a')]", "gzip.compress without mtime=0"),
        ("[gzip.compress(b'a', mtime=None)]", "gzip.compress without mtime=0"),
        ("[1, random.random()]", "random.random"),
        ("[np.random.rand()]", "np.random.rand"),
        ("[time.time()]", "time.time"),
        ("[datetime.datetime.now()]", "datetime.datetime.now"),
        ("[str(uuid.uuid4())]", "uuid.uuid4"),
        ("[os.urandom(4)]", "os.urandom"),
        ("[id(a)]", "id"),
        ("{'a', 'b'}", "over a set"),
        ("[*{'a', 'b'}]", "over a set"),
        ("list(set(NAMES))", "over a set"),
    ],
)
def test_an_unstable_parameter_is_seen(values: str, fault: str) -> None:
    directly = f"@pytest.mark.parametrize('value', {values})\ndef test_one(value): ...\n"
    by_name = f"CASES = {values}\nALL = CASES\n@pytest.mark.parametrize('value', ALL)\ndef test_one(value): ...\n"
    for source in (directly, by_name):
        (found,) = house.unstable_parameters({"tests/test_a.py": source})
        assert fault in found and found.startswith("tests/test_a.py:")


@pytest.mark.parametrize(
    "values", ["[gzip.compress(b'a', mtime=0)]", "sorted({'a', 'b'})", "[{'a', 'b'}, set()]", "[datetime.date(2020, 1, 1)]"]
)
def test_a_stable_parameter_is_left_alone(values: str) -> None:
    assert house.unstable_parameters({"tests/test_a.py": f"@pytest.mark.parametrize('value', {values})\ndef test_one(value): ...\n"}) == []


@pytest.mark.parametrize("content", [b"\x1f\x8b", b"\x1f\x8c"])
def test_bytes_are_no_part_of_an_id(content: bytes, request: pytest.FixtureRequest) -> None:
    assert request.node.name == f"test_bytes_are_no_part_of_an_id[content{content[1] - 0x8B}]"


def test_every_config_key_is_explained() -> None:
    keys = list(fields(Config))
    assert 25 <= len(keys) <= 71, "at most 70 keys and the recipe's options"
    assert _unexplained([(key, text) for key, _, text in keys if key != "options"]) == []


@pytest.mark.parametrize("name", RECIPES)
def test_every_option_of_a_recipe_is_explained(name: str) -> None:
    keys = list(fields(load_recipe(find_recipe(name)).Options))
    assert len(keys) >= 1
    assert _unexplained([(key, text) for key, _, text in keys]) == []


def test_an_unexplained_key_is_seen() -> None:
    class Careless(Section):
        printed: int = 1
        """How many times the thing was told."""
        untold: int = 2

    assert _unexplained([(key, text) for key, _, text in fields(Careless)]) == ["untold"]


COMMANDS = [*VERBS, "overtone", "overtone train --recipe voice_clone"]
WITH_TORCH = "import torch; print('usage'); code = 0"
FORKED = """
import contextlib, io, json, os, sys
import overtone.__main__
import pydantic  # what most commands import; were any of it heavy, each would show it

for statement in json.load(sys.stdin):
    if not os.fork():
        bound, output = {}, io.StringIO()
        with contextlib.redirect_stdout(output):
            try:
                exec(statement, bound)
            except SystemExit as stop:
                bound["code"] = stop.code or 0
        heavy = [name for name in ("torch", "transformers", "accelerate", "librosa", "matplotlib") if name in sys.modules]
        print(json.dumps([statement, bound["code"], output.getvalue(), heavy]), flush=True)
        os._exit(0)
    os.wait()
"""
"""Runs each statement, which binds `code`, in a process of its own that has imported little; prints a line of JSON for each."""


@pytest.fixture(scope="module")
def helps() -> dict[str, tuple[int, str, list[str]]]:
    """Statement → (exit code, standard output, heavy packages that it imported)."""
    statements = [*map(statement_of, COMMANDS), WITH_TORCH]
    command = [sys.executable, "-c", FORKED]
    done = subprocess.run(command, input=json.dumps(statements), cwd=ROOT, capture_output=True, text=True, timeout=250)
    found = {statement: (code, output, heavy) for statement, code, output, heavy in map(json.loads, done.stdout.splitlines())}
    assert list(found) == statements, done.stderr
    return found


def statement_of(command: str) -> str:
    return f"from overtone.__main__ import main; code = main({[*command.split()[1:], '--help']!r})"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_imports_no_torch(command: str, helps: dict[str, tuple[int, str, list[str]]]) -> None:
    code, output, heavy = helps[statement_of(command)]
    assert code == 0 and len(output) > 60
    assert heavy == []


def test_an_import_of_torch_is_noticed(helps: dict[str, tuple[int, str, list[str]]]) -> None:
    assert helps[WITH_TORCH] == (0, "usage\n", ["torch"])


def _unexplained(keys: list[tuple[str, str]]) -> list[str]:
    return [key for key, text in keys if len(text.split()) < 2]


def _declared_modules(*extras: str) -> frozenset[str]:
    """Top-level modules of the distributions that pyproject.toml names, for the core and the given extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    names = {_plain(line) for line in lines}
    missing = names - {_plain(each.name) for each in distributions()}
    assert len(names) >= 15 and missing <= ({"pocketsphinx"} if sys.version_info >= (3, 12) else set()), "it has no wheel for Python 3.12"
    return missing | frozenset(module for module, owners in packages_distributions().items() if names & {_plain(owner) for owner in owners})


def _plain(requirement: str) -> str:
    name = requirement.partition(">")[0].partition("=")[0].partition("[")[0].strip()
    return name.lower().replace("_", "-").replace(".", "-")


def test_no_docstring_is_a_fragment() -> None:
    assert house.fragments(HOUSE) == []


def test_a_fragment_is_seen() -> None:
    source = '''
class Voice:
    """A voice."""

    clips: int
    """Of theirs, on average."""

    def is_known(self) -> bool:
        """
        Whether it is."""

    def is_new(self) -> bool:
        """Return whether it is. Of two voices, the first is. As of now."""
'''
    assert house.fragments({"a.py": source}) == ["a.py:6: Of theirs, on average.", "a.py:9: Whether it is."]


MOST_TAKING_CONFIG, MOST_SMALL, LARGEST_SHARE_OF_ANY = 79, 343, 0.056
"""Ceilings of what makes the code harder to follow. Lower them when the numbers fall; never raise them."""


def test_few_functions_take_the_whole_config() -> None:
    count = len(house.functions_of_whole_config(HOUSE))
    assert count <= MOST_TAKING_CONFIG, "pass a section or values instead; house.functions_of_whole_config lists the functions"


def test_few_signatures_contain_any() -> None:
    share = len(house.functions_with_any(HOUSE)) / house.count_functions(HOUSE)
    assert share <= LARGEST_SHARE_OF_ANY, "name the type; house.functions_with_any lists the functions"


def test_few_small_functions_are_used_once() -> None:
    count = len(house.small_functions_used_once(HOUSE))
    assert count <= MOST_SMALL, "write the lines where they are used, if the name adds nothing; house.small_functions_used_once lists them"


def test_a_function_that_takes_the_whole_config_is_seen() -> None:
    source = """
def plan(config: Config[Any]): ...
def save(path, *, config: Config | None = None): ...
async def load(config: "Config"): ...
def resolve(path: Path) -> Config: ...
def train(section: Train, settings: Mapping[str, ConfigValue]): ...
"""
    found = house.functions_of_whole_config({"finetune/a.py": source, "overtone/a.py": source})
    assert found == ["finetune/a.py:2: plan", "finetune/a.py:3: save", "finetune/a.py:4: load"]


def test_any_in_a_signature_is_seen() -> None:
    source = """
def f(row: dict[str, Any]) -> int: ...
def g(*rows: int, **others: Any) -> int: ...
class A:
    def h(self) -> typing.Any:
        value: Any = 1
        def inner(x: int) -> "Any": ...
    def i(self, row: Row) -> None:
        value: Any = 1
"""
    house_of_one = {"recipes/a.py": source}
    assert [line.rpartition(" ")[2] for line in house.functions_with_any(house_of_one)] == ["f", "g", "h", "inner"]
    assert house.count_functions(house_of_one) == 5


def test_a_small_function_that_is_used_once_is_seen() -> None:
    source = """
def once():
    return 1
def twice():
    return once()
def long():
    a = twice()
    b = twice()
    c = 3
    d = 4
    return a + b + c + d
def unused(): ...
@property
def decorated(): ...
def exported(): ...
called = long(), decorated, [exported for _ in ()]
"""
    other = {"finetune/b.py": "from overtone.finetune.a import exported", "overtone/c.py": "once() + once()"}
    assert house.small_functions_used_once({"finetune/a.py": source, **other}) == ["finetune/a.py:2: once"]
