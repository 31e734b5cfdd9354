"""How well the defaults of llm_sft train SmolLM2-135M: two tasks, 100 and 1,000 rows, all weights and LoRA, beside a grid and TRL.

A run is trained, exported and judged in its own process; its result is a line of results/sft_defaults.jsonl. Runs that are there already
are not run again, so the benchmark can be interrupted, and the table has the results that there are. All runs take hours of one core.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from overtone.finetune.config import resolve
from overtone.finetune.recipe import find_recipe
from overtone.finetune.storage import files
from overtone.recipes.llm_sft.options import Options
from workshop.benchmarks import _table
from workshop.benchmarks._sft_settings import FULL, LORA, OURS, TRL, UNSLOTH, UNTRAINED, Result, Setting

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-chat" / "bin" / "python"
MODEL = Path(os.environ.get("OVERTONE_REAL_MODELS") or ROOT / ".real_models") / "SmolLM2-135M-Instruct"
DEFAULTS = {FULL: 3e-5, LORA: 4e-4}
"""Rates by default."""
GRID = {FULL: (3e-5, 1e-4, 1e-5), LORA: (3e-4, 5e-4, 2e-4, 1e-3)}
"""Rates to compare; LoRA's default comes from between the first two."""
TASKS = ("persons", "sailor")
TRL_ROWS = 8
"""Rows in a step by TRL's defaults."""
COLUMNS = (
    "task", "rows", "trained", "with", "learning rate", "epochs", "steps", "held-out right, of 40", "general kept, of 30",
    "processor seconds",
)  # fmt: skip
NOTE = (
    "SmolLM2-135M-Instruct on one CPU core in bf16. persons: a sentence about a person to JSON, with names and jobs of no training row. "
    "sailor: answers that begin and end as a sailor speaks, to questions of other kinds than in the rows. General: questions that the "
    "released model answers; its template's default system message is left out here, which costs it some. TRL: the defaults of SFTConfig, "
    "and for LoRA those of its ModelConfig with the learning rate of its documented command; unsloth: the settings of its notebooks. "
    "**bold**: the defaults of llm_sft. Processor seconds: from loading the model to the trained weights. {left}"
)


def list_settings() -> Iterator[Setting]:
    """What matters most comes first, since an interrupted benchmark has only that."""
    yield from (Setting(UNTRAINED, task) for task in TASKS)
    for rows, epochs in ((100, 3), (100, 1), (1000, 1), (1000, 3)):
        for way, grid in GRID.items():  # three epochs of 1,000 rows take hours: their rates are compared at one epoch
            own = grid[:1] if (rows, epochs) == (1000, 3) else grid
            rates = grid if epochs == 1 else tuple(dict.fromkeys((DEFAULTS[way], *own)))
            yield from (Setting(OURS, task, rows, way, lr, epochs) for lr in rates for task in TASKS)
        if (rows, epochs) == (1000, 3):  # more and smaller steps than `auto` makes
            yield from (Setting(OURS, task, rows, LORA, GRID[LORA][0], epochs, TRL_ROWS) for task in reversed(TASKS))
            yield Setting(OURS, "sailor", rows, LORA, GRID[LORA][0], epochs, seed=1)  # the first seed misses 90 % of the best
        if epochs == 3:
            yield from (Setting(UNSLOTH, task, rows, LORA) for task in TASKS)
            yield from (Setting(TRL, task, rows, way) for way in (LORA, FULL) for task in TASKS)


def read_results(path: Path) -> dict[Setting, Result]:
    """The results that there are, of the runs in their order."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    found = [json.loads(line) for line in text.splitlines() if line.endswith("}}")]  # a line that was cut off ends otherwise
    return {Setting(**each["setting"]): Result(**each["result"]) for each in found}


def run_setting(base: Path, setting: Setting) -> Result:
    """Train and judge in a process of its own, on one core."""
    with tempfile.TemporaryDirectory() as folder:
        command = [PYTHON, "-m", "workshop.benchmarks._sft_run", base, folder, json.dumps(asdict(setting))]
        done = subprocess.run(command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{setting}: {done.stdout[-2000:]}{done.stderr[-4000:]}")
    return Result(**json.loads(done.stdout.splitlines()[-1]))


def make_base(folder: Path, quick: bool) -> Path:
    """The model that all runs start from: SmolLM2 without the default system message of its template, which is half of a short chat."""
    if quick:
        command = [PYTHON, "-m", "overtone.recipes.llm_sft.model.tiny_checkpoint", folder]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return folder
    shutil.copytree(MODEL, folder)
    template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    shorter = re.sub(r"\{% if loop.first and.*?\{% endif %\}", "", template, flags=re.DOTALL)
    assert shorter != template
    files.write_text(folder / "chat_template.jinja", shorter)
    return folder


def is_default(setting: Setting) -> bool:
    """Whether llm_sft trains so without further settings."""
    given = [("data.train", "rows.jsonl"), *([("model.lora", "true")] if setting.way == LORA else [])]
    train = resolve("llm_sft", Options, [find_recipe("llm_sft") / "config.yaml"], given).train
    return setting.trainer == OURS and (setting.lr, setting.epochs, setting.batch) == (train.lr, train.epochs, None)


def make_row(setting: Setting, result: Result) -> list[object]:
    """A row of the table."""
    name = f"**{setting.trainer}**" if is_default(setting) else setting.trainer
    name += "" if setting.batch is None else f", {setting.batch} rows in a step"
    name += f", seed {setting.seed}" if setting.seed else ""
    values = (f"{result.lr:g}", f"{result.epochs:g}", result.steps, result.right, result.known, f"{result.seconds:.0f}")
    return [setting.task, setting.rows, setting.way, name, *values]


def publish(flags: _table.Flags, settings: list[Setting], found: dict[Setting, Result]) -> None:
    """Write the table, by task, rows and way."""
    left = sum(setting not in found for setting in settings)
    ordered = sorted(
        (setting for setting in settings if setting in found), key=lambda each: (each.task, each.rows, each.way, each.trainer != OURS)
    )
    note = NOTE.format(left=f"{left} of {len(settings)} runs are not measured yet." if left else "")
    _table.publish("sft_defaults", flags, COLUMNS, [make_row(each, found[each]) for each in ordered], note.strip(), is_whole=not left)


def main() -> None:
    flags = _table.read_flags(__doc__)
    if not PYTHON.exists() or subprocess.run([PYTHON, "-c", "import trl"], check=False, capture_output=True).returncode:
        print(f"{_table.SKIPPED}needs trl in .venv-chat: `make .venv-chat/.installed` makes that environment")
        return
    if not flags.quick and not MODEL.is_dir():
        print(f"{_table.SKIPPED}needs SmolLM2: `.venv-chat/bin/python -m tests.real.build_models {MODEL.parent}` builds it")
        return
    path = flags.to / ("sft_defaults_quick.jsonl" if flags.quick else "sft_defaults.jsonl")
    settings = [Setting(OURS, TASKS[0], 8, LORA, 2e-4, 1)] if flags.quick else [*list_settings()]
    with tempfile.TemporaryDirectory() as folder:
        base = make_base(Path(folder) / "base", flags.quick)
        for setting in settings:
            if setting not in read_results(path):
                result = run_setting(base, setting)
                files.append_line(path, json.dumps({"setting": asdict(setting), "result": asdict(result)}))
                publish(flags, settings, read_results(path))
    publish(flags, settings, read_results(path))


if __name__ == "__main__":
    main()
