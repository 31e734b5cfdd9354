"""The plan of a run: the requested or best strategy, the problems, and the largest micro-batch, which really fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from overtone.finetune.config import resolve
from overtone.finetune.errors import UserError
from overtone.finetune.hardware.gpu_specs import Cluster, Gpu, make_cluster
from overtone.finetune.planning.memory import GIB, estimate_memory
from overtone.finetune.planning.meta_device_estimate import RunEstimate, estimate_run
from overtone.finetune.planning.run_plan import look_at_data, plan_run
from overtone.finetune.recipe import find_recipe, load_recipe
from overtone.finetune.storage import files
from tests.finetune import tiny

MACHINE = make_cluster("h100-80gb", 4, 1)


@pytest.fixture(scope="module")
def foreseen(tmp_path_factory: pytest.TempPathFactory) -> RunEstimate:
    return estimate_run(tiny.config_in(tmp_path_factory.mktemp("run")), tiny.RECIPE)


def asking(foreseen: RunEstimate, **parallel: object) -> RunEstimate:
    config = foreseen.config
    return replace(foreseen, config=config.model_copy(update={"parallel": config.parallel.model_copy(update=parallel)}))


def test_a_requested_strategy_is_used_or_refused(foreseen: RunEstimate) -> None:
    prospect = plan_run(asking(foreseen, strategy="zero2"), MACHINE)
    assert prospect.configured and str(prospect.best.arrangement) == "zero2"
    assert all(str(each.arrangement) != "zero2" for each in prospect.verdicts[1:])
    with pytest.raises(UserError, match="hsdp needs a number above 1"):
        plan_run(asking(foreseen, strategy="hsdp"), MACHINE)
    with pytest.raises(UserError, match="needs fsdp, and must divide the GPUs of a machine"):
        plan_run(asking(foreseen, strategy="fsdp", tensor=8), MACHINE)


def test_the_largest_micro_batch_fits_and_more_does_not(foreseen: RunEstimate) -> None:
    """A GPU that is a little larger than the states: what is left is counted out, and traced again at that size."""
    needed = plan_run(foreseen, make_cluster("h100-80gb", 1, 1)).best.memory
    small = Cluster("small", Gpu((needed.total + 3_000_000) / GIB, 1, 1, 1), 1)
    prospect = plan_run(foreseen, small)
    most = prospect.largest
    assert most > foreseen.config.train.micro_tokens

    def total(positions: int) -> int:
        work = foreseen.activations(positions, "none", 1)
        return estimate_memory(foreseen.outline, prospect.best.arrangement, work, foreseen.work.compute).total

    assert total(most) <= small.budget < total(round(most * 1.04))


def test_the_largest_micro_batch_is_that_of_a_run_with_so_many_positions(tmp_path: Path) -> None:
    """A wide vocabulary: the fp32 gradient of the head hides at 1,024 positions how much a recomputed block needs at nine times as many."""
    shape = {"model_type": "llama", "vocab_size": 32000, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4}
    files.write_json(tmp_path / "config.json", shape | {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": False})
    recipe, folder = load_recipe(find_recipe("llm_sft")), find_recipe("llm_sft")
    own = {"model.source": tmp_path, "run.dir": tmp_path / "run", "train.activation_checkpointing": "full", "model.lora": None}

    def estimate(positions: int) -> RunEstimate:
        sizes = {"train.micro_tokens": positions, "train.global_batch_tokens": 2**20}
        overrides = [(key, "null" if value is None else str(value)) for key, value in (own | sizes).items()]
        return estimate_run(resolve("llm_sft", recipe.Options, [folder / "config.yaml"], overrides), recipe)

    short = estimate(1024)
    needed = plan_run(short, make_cluster("h100-80gb", 1, 1)).best.memory
    small = Cluster("toy", Gpu((needed.total + 115_000_000) / GIB, 1, 1, 1), 1)
    most = plan_run(short, small).largest
    for positions, fits in ((most, True), (round(1.04 * most), False)):
        assert plan_run(estimate(positions), small).best.fits == fits, (most, positions)
    traced = [short.activations(positions, "full", 1).peak for positions in (512, 1024)]
    assert 1024 + 110_000_000 / ((traced[1] - traced[0]) / 512) > 1.5 * most, "a line through short ones is far too high"


def test_a_plan_that_does_not_fit_comes_with_advice(foreseen: RunEstimate) -> None:
    prospect = plan_run(foreseen, Cluster("toy", Gpu(0.5, 1, 1, 1), 1))
    assert not prospect.best.fits and prospect.largest == 0
    (problem,) = [problem for problem in prospect.problems(None) if "out of memory" in problem]
    assert "use more GPUs" in problem


def test_missing_weights_and_bad_rows_are_problems(tmp_path: Path) -> None:
    tiny.write_rows(tmp_path / "train.jsonl", ["fine and long", "fine and longer"])
    config = tiny.config_in(tmp_path)
    (tmp_path / "base" / "model.safetensors").unlink()
    prospect = plan_run(estimate_run(config, tiny.RECIPE), MACHINE)
    tiny.write_rows(tmp_path / "train.jsonl", ["fine and long", "x"])
    first, second = prospect.problems(look_at_data(prospect.foreseen, tiny.RECIPE))
    assert "contains no *.safetensors" in first and "train.jsonl:2" in second
