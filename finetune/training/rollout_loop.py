"""Rollouts on all ranks: current weights, answers in the place of prompts, and the run's rollouts.jsonl.

Each rank has a whole copy of the model and answers the prompts of its own micro-batches; nothing but the weights is collective. Rank 0
writes the rollouts of a step in the order of its rows, so that the file is the same on any number of ranks.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import BaseModel
from torch import nn

from overtone.finetune.config import Lora, Model, Parallel
from overtone.finetune.data.batching import RankBatch, lay_samples, read_sample
from overtone.finetune.data.cached_samples import Rows
from overtone.finetune.data.keyed_permutation import derive_key
from overtone.finetune.data.mixture import MixedRows
from overtone.finetune.distributed.process_group import World, gather_on_main, run_on_all, run_on_main
from overtone.finetune.errors import UserError
from overtone.finetune.modeling.whole_weights import iterate_whole_weights
from overtone.finetune.monitoring.run_records import ROLLOUTS
from overtone.finetune.recipe import Loaded, LoggedRollout, PromptRow, Recipe, Rollout, RolloutSettings, RolloutWorker
from overtone.finetune.storage import files, input_files, strict_json
from overtone.finetune.training.rollout_page import PAGE, render_page

SHOWN_STEPS = 8
"""Steps of this launch that the page shows."""
Records = list[LoggedRollout]


class AnsweredPrompt(NamedTuple):
    """A prompt with its answers."""

    prompt: PromptRow
    rollout: Rollout


@dataclass(frozen=True)
class RolloutLoop:
    """The rollouts of a run."""

    world: World
    recipe: Recipe
    options: BaseModel
    worker: RolloutWorker
    seed: int
    """`run.seed`."""
    run_dir: Path
    lora: Lora | None
    fixed: int | None
    """Length to which packed rows are padded."""
    shown: deque[Records] = field(default_factory=lambda: deque(maxlen=SHOWN_STEPS))

    @classmethod
    def open(
        cls,
        world: World,
        recipe: Recipe,
        loaded: Loaded,
        options: BaseModel,
        settings: RolloutSettings,
        run_dir: Path,
        lora: Lora | None,
        fixed: int | None,
    ) -> RolloutLoop | None:
        """Return the rollouts of a run; None for a recipe without `Rollouts`. Collective: call on every rank."""
        rollouts = recipe.rollouts
        if rollouts is None:
            return None
        worker = run_on_all(world, lambda: rollouts.open(loaded, options, settings))
        return cls(world, recipe, options, worker, settings.seed, run_dir, lora, fixed)

    def take_over_weights(self, model: nn.Module) -> None:
        """Answer with the weights that the model has now. Call it between steps. The model is in eval mode from then on: answers are
        generated without dropout, and the ratios of the loss compare with the same policy. Collective: call on every rank."""
        model.eval()
        self.worker.update_weights(iterate_whole_weights(model, self.lora))

    def answer(self, rows: Rows | MixedRows, turns: Sequence[RankBatch], step: int | None) -> list[RankBatch]:
        """Return the turns with batches of answers. `step`: the one that trains on them, which is recorded, or None in an evaluation.
        Collective: call on every rank."""
        counted = [turn for turn in turns if turn.counts]
        prompts = [
            PromptRow(row, rows.where(row), one, earlier)
            for turn in counted
            for row, one, earlier in zip(turn.micro.ids, turn.prompts, turn.earlier, strict=True)
        ]
        answered = run_on_all(self.world, lambda: self._answer_own(rows, prompts, step))
        if step is not None:
            self._record(rows, step, answered)
        left = iter(answered)
        return [self._fill(turn, left, step) for turn in turns]

    def _answer_own(self, rows: Rows | MixedRows, prompts: list[PromptRow], step: int | None) -> list[AnsweredPrompt]:
        """Answer the prompts of this rank, and replace those whose answers teach nothing."""
        recipe = self.recipe
        assert recipe.rollouts is not None
        found = [AnsweredPrompt(*each) for each in zip(prompts, self.worker.answer(prompts, step), strict=True)]
        for _ in range(0 if step is None else recipe.rollouts.replacements(self.options)):
            numbers = [number for number, one in enumerate(found) if one.rollout.can_be_replaced]
            if not numbers:
                break
            others = [draw_replacement(rows, recipe, found[number].prompt, derive_key(self.seed, step or 0)) for number in numbers]
            for number, other, rollout in zip(numbers, others, self.worker.answer(others, step), strict=True):
                found[number] = AnsweredPrompt(other, rollout)
        return found

    def check(self, means: Mapping[str, float]) -> None:
        """Raises `UserError` if the step with these means must not be applied. Collective: call on every rank."""
        rollouts = self.recipe.rollouts
        assert rollouts is not None  # else there is no loop
        run_on_main(self.world, lambda: rollouts.check(means, self.options))

    def _fill(self, turn: RankBatch, answered: Iterator[AnsweredPrompt], step: int | None) -> RankBatch:
        assert self.recipe.rollouts is not None
        own = [next(answered) for _ in turn.prompts] if turn.counts else []
        samples = [sample for one in own for sample in one.rollout.samples] or self.worker.make_filler(turn.prompts[0], step)
        tokens = sum(map(self.recipe.rollouts.measure, samples)) if turn.counts else 0
        batch = lay_samples(self.recipe, samples, turn.micro.packed, self.fixed)
        ids = tuple(one.prompt.row for one in own) if turn.counts else turn.micro.ids
        return replace(turn, batch=batch, micro=replace(turn.micro, ids=ids, tokens=tokens))

    def _record(self, rows: Rows | MixedRows, step: int, answered: Sequence[AnsweredPrompt]) -> None:
        own = [
            [
                (*prompt.replaces, prompt.row)[0],
                prompt.earlier,
                {"step": step, "row": prompt.where, "replaces": [*map(rows.where, prompt.replaces)], **one.record},
            ]
            for prompt, one in answered
        ]
        found = sorted((one for each in gather_on_main(self.world, own) for one in each), key=lambda one: one[:2])
        run_on_main(self.world, lambda: self._write([record for *_, record in found]))

    def _write(self, records: Records) -> None:
        try:
            lines = [json.dumps(record, ensure_ascii=False, allow_nan=False) for record in records]
        except ValueError:  # such a line could not be read again
            raise UserError(
                f"a number in the rollouts of step {records[0]['step']} is not finite; lower the weights of the rewards"
            ) from None
        self.shown.append(records)
        files.append_line(self.run_dir / ROLLOUTS, "\n".join(lines))
        files.write_volatile(self.run_dir / PAGE, render_page(self.run_dir.name, [*self.shown][::-1]).encode())


def draw_replacement(rows: Rows | MixedRows, recipe: Recipe, prompt: PromptRow, key: int) -> PromptRow:
    """Return another prompt to answer in the place of this one: of the same file, and not longer than the step's own prompt, so that the
    micro-batch stays within its limit. It depends on `key` and on the prompts that it replaces alone. A prompt is repeated only if there
    is no other one."""
    replaces = (*prompt.replaces, prompt.row)
    fitting = rows.list_not_longer(replaces[0])
    unused = fitting[~np.isin(fitting, replaces)]
    candidates = unused if len(unused) else fitting
    row = int(candidates[derive_key(key, prompt.earlier, *replaces) % len(candidates)])
    return PromptRow(row, rows.where(row), read_sample(rows, recipe, row), prompt.earlier, replaces)


def check_settings(recipe: Recipe, name: str, parallel: Parallel, model: Model) -> None:
    """Raises `UserError` for a setting with which no whole copy of the weights can be made, or answers would be those of another policy
    than the trained one. `name`: of the recipe."""
    if recipe.rollouts is None:
        return
    if model.lora is not None and model.lora.dropout > 0:
        raise UserError(
            f"model.lora.dropout: {model.lora.dropout:g} does not work with {name}: its answers are generated without dropout, and the "
            "loss compares with their probabilities; remove it"
        )
    settings = (
        ("parallel.tensor", parallel.tensor > 1),
        ("parallel.offload", parallel.offload),
        ("model.quantization", model.quantization),
    )
    for key, is_set in settings:
        if is_set:
            raise UserError(f"{key} does not work with {name}, which copies the weights in each step to generate answers; remove it")


def remove_later_rollouts(run_dir: Path, step: int) -> None:
    """Remove the rollouts of steps after `step`, which are repeated, and half a line of a killed launch. On one rank."""
    path = run_dir / ROLLOUTS
    files.check_log(path)
    if path.exists():
        files.write_stream(path, _keep_lines(path, step))


def _keep_lines(path: Path, step: int) -> Iterator[bytes]:
    with input_files.open_file(path) as file:
        for line in file:
            try:
                record = strict_json.loads_object(line)
            except UserError:
                continue  # half of a line
            if isinstance(record.get("step"), int) and record["step"] <= step:
                yield line
