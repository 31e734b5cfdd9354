"""The page that shows the newest rollouts of a run. It needs no other file, no network and no script."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from overtone.finetune.pages.jinja_environment import make_environment, read_style
from overtone.finetune.recipe import LoggedRollout

PAGE = "rollouts.html"
MOST_PROMPTS = 16
"""Prompts of a step that the page shows."""


class StepSummary(TypedDict):
    """The figures of a step."""

    number: int
    prompts: Sequence[LoggedRollout]
    answers: int
    mean: float
    """Mean reward."""
    flat: int
    """Prompts whose answers all have the same reward."""
    hidden: int
    """Prompts that the page does not show."""


def render_page(title: str, steps: Sequence[Sequence[LoggedRollout]]) -> str:
    """Return the page. `steps`: the lines of rollouts.jsonl of each step, in the order in which they are shown. Texts are escaped."""
    shown = [describe_step(records) for records in steps if records]
    template = make_environment(Path(__file__).parent).get_template("rollout_page.html")
    return template.render(title=title, style=read_style(), steps=shown, most=MOST_PROMPTS)


def describe_step(records: Sequence[LoggedRollout]) -> StepSummary:
    """Return the figures of a step for the template."""
    rewards = [answer["reward"] for record in records for answer in record["answers"]]
    return {
        "number": records[0]["step"],
        "prompts": records,
        "answers": len(rewards),
        "mean": sum(rewards) / len(rewards),
        "flat": sum(record["flat"] for record in records),
        "hidden": max(0, len(records) - MOST_PROMPTS),
    }
