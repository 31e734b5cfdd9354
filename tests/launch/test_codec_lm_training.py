"""codec_lm through the engine: the same numbers on 1, 2 and 4 ranks, tensor parallel too; resume; and exact regeneration by stock
transformers after a launch.

`tests/recipes/codec_lm/test_recipe.py` is the quick twin of the last.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

from overtone.finetune.exporting import export
from overtone.recipes.codec_lm.model.sequence_layout import SpeechTextProcessor, find_token_ids
from overtone.recipes.language.tokenization.tokenizer import load_tokenizer
from tests.launch.launching import launch, series
from tests.launch.same_steps import RunsOfCases, cases_on_ranks, compare_steps
from tests.recipes.codec_lm import tiny_models
from tests.recipes.codec_lm.test_recipe import stock_frames

PACKED = {"parallel.strategy": "fsdp", "train.micro_tokens": "260", "data.packing": "true"}
CASES = {
    "packed": PACKED,
    "padded": {**PACKED, "data.packing": "false"},
    "whole": {"parallel.strategy": "ddp", "train.micro_tokens": "4000", "data.packing": "true"},
    "lora": {**PACKED, "model.lora.rank": "4"},
    "halved": {**PACKED, "parallel.tensor": "2"},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> RunsOfCases:
    folder = tmp_path_factory.mktemp("codec-lm-same")
    given = {
        "model.source": tiny_models.write_base(folder / "base"),
        "options.codec": tiny_models.write_codec(folder / "codec"),
        "data.train": tiny_models.write_rows(folder / "train.jsonl", tiny_models.make_rows(("Ann", "Bob", "Cid"), (5, 17))),
    }
    return RunsOfCases(folder, "codec_lm", CASES, given)


def test_the_matrix_has_all_cases() -> None:
    assert len(cases_on_ranks(CASES)) == 14
    assert all(one != other for one, other in itertools.combinations(CASES.values(), 2))


@pytest.mark.parametrize(("world", "case"), cases_on_ranks(CASES, lambda case: case != "lora"))
def test_ranks_packing_and_tensor_parallelism_do_not_change_the_steps(runs: RunsOfCases, world: int, case: str) -> None:
    compare_steps(runs(world, case), runs(1, "whole"))


@pytest.mark.parametrize(("world", "case"), cases_on_ranks(CASES, lambda case: case == "lora"))
def test_lora_takes_the_same_steps_on_any_number_of_ranks(runs: RunsOfCases, world: int, case: str) -> None:
    compare_steps(runs(world, case), runs(1, "lora"))
    assert [step["loss"] for step in runs(1, "lora")][1:] != [step["loss"] for step in runs(1, "packed")][1:]


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
