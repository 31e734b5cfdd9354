"""codec_lm through the engine: the same numbers on 1, 2 and 4 ranks, tensor parallel too; resume; and exact regeneration by stock
transformers after a launch.

`tests/recipes/codec_lm/test_recipe.py` is the quick twin of the last.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest

from finetune.config import resolve
from finetune.distributed import process_group
from finetune.exporting import export
from finetune.recipe import find_recipe, load_recipe
from finetune.training.run import train
from recipes.codec_lm.sequence_layout import SpeechTextProcessor, find_token_ids
from recipes.language.tokenizer import load_tokenizer
from tests.launch.forked_ranks import run_ranks
from tests.launch.launching import launch, series
from tests.recipes.codec_lm import tiny_models
from tests.recipes.codec_lm.test_recipe import stock_frames

STEPS = 3
WORLDS = (1, 2, 4)
PACKED = {"parallel.strategy": "fsdp", "train.micro_tokens": "260", "data.packing": "true"}
PADDED = {"parallel.strategy": "fsdp", "train.micro_tokens": "260", "data.packing": "false"}
WHOLE = {"parallel.strategy": "ddp", "train.micro_tokens": "4000", "data.packing": "true"}
LORA = {**PACKED, "model.lora.rank": "4"}
HALVED = {**PACKED, "parallel.tensor": "2"}
EVERY = [PACKED, PADDED, WHOLE, LORA, HALVED]


def worlds_of(case: dict[str, str]) -> tuple[int, ...]:
    return WORLDS[1:] if case is HALVED else WORLDS


class CodecLmRuns:
    """A folder of runs. Those of one and two ranks are trained when the first is requested; so are those of four."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tiny_models.write_base(folder / "base")
        tiny_models.write_codec(folder / "codec")
        tiny_models.write_rows(folder / "train.jsonl", tiny_models.make_rows(("Ann", "Bob", "Cid"), (5, 17)))

    def __call__(self, world: int, case: dict[str, str]) -> list[dict[str, Any]]:
        if not self.place(world, case).is_dir():
            groups = [(size, (self.overrides(size),)) for size in WORLDS if (size == 4) == (world == 4)]
            run_ranks(train_codec_lm_cases, groups, ["codec_lm"], self.folder / f"witness-{world}")
        return series(self.place(world, case))

    def place(self, world: int, case: dict[str, str]) -> Path:
        return self.folder / f"{world}" / str(EVERY.index(case))

    def overrides(self, world: int) -> list[dict[str, str]]:
        shared = {
            "model.source": self.folder / "base",
            "options.codec": self.folder / "codec",
            "data.train": self.folder / "train.jsonl",
            "train.steps": STEPS,
            "train.lr": "1e-3",
            "train.precision": "fp32",
            "train.global_batch_tokens": 10**6,  # a step is the whole epoch, so that every cut into micro-batches is the same step
            "log.trackers": "[]",
        }
        todo = [case for case in EVERY if world in worlds_of(case)]
        return [{key: str(value) for key, value in {**shared, "run.dir": self.place(world, case), **case}.items()} for case in todo]


def train_codec_lm_cases(cases: list[dict[str, str]]) -> None:
    """One run after the other, on this rank."""
    joined = process_group.join((), Path())
    folder = find_recipe("codec_lm")
    recipe = load_recipe(folder)
    for overrides in cases:
        train(joined, resolve("codec_lm", recipe.Options, [folder / "config.yaml"], overrides.items()), recipe)
    process_group.leave()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> CodecLmRuns:
    return CodecLmRuns(tmp_path_factory.mktemp("codec-lm-same"))


def places(cases: list[dict[str, str]]) -> list[Any]:
    """Each case on each number of ranks, as parameters of a test. CI runs those of one and two."""
    return [
        pytest.param(world, case, id=f"{world}-{EVERY.index(case)}", marks=[pytest.mark.slow, *([pytest.mark.ci] if world < 4 else [])])
        for case in cases
        for world in worlds_of(case)
    ]


def test_the_matrix_has_all_cases() -> None:
    assert len(EVERY) == 5 and len(places(EVERY)) == 14
    assert all(one != other for one, other in itertools.combinations(EVERY, 2))


@pytest.mark.parametrize(("world", "case"), places([PACKED, PADDED, WHOLE, HALVED]))
def test_ranks_packing_and_tensor_parallelism_do_not_change_the_steps(runs: CodecLmRuns, world: int, case: dict[str, str]) -> None:
    compare(runs(world, case), runs(1, WHOLE))


@pytest.mark.parametrize(("world", "case"), places([LORA]))
def test_lora_takes_the_same_steps_on_any_number_of_ranks(runs: CodecLmRuns, world: int, case: dict[str, str]) -> None:
    compare(runs(world, case), runs(1, LORA))
    assert [step["loss"] for step in runs(1, LORA)][1:] != [step["loss"] for step in runs(1, PACKED)][1:]


def compare(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert len(found) == len(expected) == STEPS
    for one, other in zip(found, expected, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-5, rel=0)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=2e-5)


def launched(folder: Path) -> Path:
    """A run on two processes that memorizes the rows; it resumes if folder/run has checkpoints."""
    data = ["--model.source", folder / "base", "--options.codec", folder / "codec", "--data.train", folder / "train.jsonl"]
    rates = ["--train.lr", "1e-2", "--train.final_lr", 0.02, "--train.weight_decay", 0, "--train.precision", "fp32"]
    sizes = ["--train.steps", 100, "--train.global_batch_tokens", 1000, "--train.micro_tokens", 300, "--checkpoint.every", 50]
    place = ["--run.dir", folder / "run", "--log.trackers", "[]", "--eval.at_start", "false"]
    launch("fsdp2", 2, "finetune/train.py", "--recipe", "codec_lm", *data, *rates, *sizes, *place)
    return folder / "run"


@pytest.mark.slow
@pytest.mark.ci
def test_a_launched_run_regenerates_its_clips_and_resumes(tmp_path: Path) -> None:
    tiny_models.write_base(tmp_path / "base")
    tiny_models.write_codec(tmp_path / "codec")
    rows = tiny_models.make_rows(frames=(9, 14))
    tiny_models.write_rows(tmp_path / "train.jsonl", rows)
    run = launched(tmp_path)
    whole = series(run)
    assert whole[-1]["loss"] < 0.01
    exported = export.export(run, tmp_path / "export")
    tokenizer = load_tokenizer(exported, None)
    ids = find_token_ids(tokenizer, tiny_models.FAMILY, exported)
    processor = SpeechTextProcessor(tokenizer, tiny_models.FAMILY, ids, tiny_models.POSITIONS)
    assert [stock_frames(exported, processor, row) for row in rows] == [row["audio_codes"] for row in rows]
    shutil.rmtree(max((run / "checkpoints").iterdir()))
    again = series(launched(tmp_path))
    assert [step["time"] for step in again[:50]] == [step["time"] for step in whole[:50]], "the first half was not trained again"
    assert len(again) == len(whole) == 100 and again[50]["time"] > whole[-1]["time"]
    assert again[-1]["loss"] == pytest.approx(whole[-1]["loss"], abs=1e-6)
