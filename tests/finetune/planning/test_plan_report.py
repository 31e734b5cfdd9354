"""The report of a plan shows the choice and its reasons, sizes and time, memory in bars, and the number of problems."""

from __future__ import annotations

from dataclasses import replace

import pytest

from overtone.finetune.hardware.gpu_specs import Cluster, Gpu, make_cluster
from overtone.finetune.planning.memory import GIB, ParameterOutline, Unit
from overtone.finetune.planning.meta_device_estimate import RunEstimate, estimate_run
from overtone.finetune.planning.plan_report import format_bars, format_plan
from overtone.finetune.planning.run_plan import RunPlan, look_at_data, plan_run, settle_plan
from tests.finetune import tiny

MACHINE = make_cluster("h100-80gb", 4, 1)


@pytest.fixture(scope="module")
def foreseen(tmp_path_factory: pytest.TempPathFactory) -> RunEstimate:
    return estimate_run(tiny.config_in(tmp_path_factory.mktemp("run")), tiny.RECIPE)


def text_of(prospect: RunPlan, problems: list[str]) -> str:
    seen = look_at_data(prospect.foreseen, tiny.RECIPE)
    foreseen, sizes = settle_plan(prospect.foreseen, seen)
    return "\n".join(format_plan(replace(prospect, foreseen=foreseen), "--recipe byte_model", seen, sizes, problems))


def test_a_report_shows_every_section(foreseen: RunEstimate) -> None:
    prospect = plan_run(foreseen, MACHINE)
    assert str(prospect.best.arrangement) == "ddp" and not prospect.configured
    said = text_of(prospect, ["one thing", "another"])
    for part in ("parameters", "a step:", "a checkpoint:", "estimated time:", "6 steps:", "masters (fp32)", "█", "total"):
        assert part in said
    assert said.count("  not ") == len(prospect.verdicts) - 1 and "problems to fix before training: 2" in said
    assert "strategy: ddp; distributed_type: MULTI_GPU" in said
    assert f"--train.micro_tokens {prospect.largest}" in said


def test_what_training_remarks_at_its_start_is_in_the_plan_once(foreseen: RunEstimate) -> None:
    said = text_of(plan_run(replace(foreseen, remarks=("attention: sdpa", "an old release")), MACHINE), [])
    assert said.count("attention: sdpa\nan old release\n") == 1 == said.count("an old release")


def test_a_plan_counts_the_host_memory_of_saves(foreseen: RunEstimate) -> None:
    """The fp32 master and both moments of each trained parameter, once over all machines."""
    outline = replace(foreseen.outline, root=Unit((ParameterOutline(1, 10**9, True, 4, 2),)))
    for nodes in (1, 2):
        said = text_of(plan_run(replace(foreseen, outline=outline), make_cluster("h100-80gb", 4, nodes)), [])
        size = f"{12 * outline.trained / nodes / 1e9:.2f} GB"
        assert f"host memory for asynchronous saves: {size} on each machine" in said
    checkpoint = foreseen.config.checkpoint.model_copy(update={"asynchronous": False})
    waiting = replace(foreseen, config=foreseen.config.model_copy(update={"checkpoint": checkpoint}))
    assert "host memory" not in text_of(plan_run(waiting, MACHINE), [])


def test_without_a_number_of_steps_it_is_estimated_from_some_rows(foreseen: RunEstimate) -> None:
    train = foreseen.config.train.model_copy(update={"steps": None})
    said = text_of(plan_run(replace(foreseen, config=foreseen.config.model_copy(update={"train": train})), MACHINE), [])
    assert "3 epochs of " in said and "from 20 of 20 rows" in said and "about" not in said and "no problems found" in said


def test_the_report_says_whether_the_search_for_the_largest_micro_batch_ended(foreseen: RunEstimate) -> None:
    needed = plan_run(foreseen, make_cluster("h100-80gb", 1, 1)).best.memory
    small = Cluster("small", Gpu((needed.total + 3_000_000) / GIB, 1, 1, 1), 1)
    assert " or more" not in text_of(plan_run(foreseen, small), [])
    assert f"--train.micro_tokens {16 * foreseen.config.train.micro_tokens} or more" in text_of(plan_run(foreseen, MACHINE), [])


def test_a_plan_that_does_not_fit_is_reported(foreseen: RunEstimate) -> None:
    assert "no micro-batch fits" in text_of(plan_run(foreseen, Cluster("toy", Gpu(0.5, 1, 1, 1), 1)), [])


def test_bars_are_proportional_to_their_terms(foreseen: RunEstimate) -> None:
    drawn = {line.split("  ")[1].strip(): line.count("█") for line in format_bars(plan_run(foreseen, MACHINE).best.memory)}
    assert max(drawn.values()) == 30 and min(drawn.values()) >= 1
