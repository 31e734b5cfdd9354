"""Writes from results/: the list of benchmarks, the page of architectures, docs/models.md, the table of GPUs in docs/plan.md.

`make bench` calls it last.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import textwrap
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from overtone.finetune.storage import files  # noqa: E402 - the line before makes it importable
from workshop.stale_figures import find_record  # noqa: E402

HARDWARE, END_OF_HARDWARE = "<!-- hardware: written by workshop/benchmarks/_pages.py -->", "<!-- end of hardware -->"
HARDWARE_COLUMNS = ("model", "training", "one GPU", "eight GPUs")
"""The columns of hardware_table.md that docs/plan.md shows."""
HEAD = """# Benchmarks

Each line links the table of one benchmark and says what it measures. `make bench` writes the tables and this page. The command above a
table writes only that table. Each ratio comes from one run on one machine. Most were measured on two shared CPU cores, and none on a GPU
unless the table says so.

"""


HEAD_OF_MODELS = """# Models

This page lists which features work for which released model. `workshop/benchmarks/models_table.py` computes the table, and
`workshop/benchmarks/_pages.py` writes this page. `llm_dpo` and `llm_reward` train the models of `llm_sft`; `llm_grpo` trains those
without experts and without dynamic or longrope positions, and takes no QLoRA and no tensor parallelism.
[What works for which architecture](../workshop/lab_book/architectures.md), with each version of transformers, is tried with
tiny models.
"""

QUANTIZED_BASES = """
## Quantized bases

| how config.json declares the weights | what `plan`, `train`, `export`, `generate`, `chat` and `serve` do |
| --- | --- |
| `fp8` (Qwen3-*-FP8, DeepSeek-V3): a scale for each block, tensor or row | dequantize while reading, slice by slice |
| `mxfp4` (gpt-oss) | dequantize while reading, slice by slice |
| compressed-tensors `float-quantized` in fp8, `fbgemm_fp8` (Llama-3.1-405B-FP8) | dequantize while reading, slice by slice |
| other compressed-tensors, GPTQ, AWQ, bitsandbytes, torchao, modelopt, MLX, any other | refuse it by name before anything is loaded |
| not at all, but tensors have 8 or 4 bits, or have scales beside them | refuse them by name before anything is loaded |

Training, with transformers 4.57 and 5, starts from the same values as with the dequantized weights
(`tests/recipes/llm_sft/test_quantized_bases.py`). An export has plain weights, in the type that config.json names (`dtype`), and declares
no quantization.
"""


EXPERTS = """
## Experts and renamed modules

transformers 5 stores all experts of a layer in one parameter and renames modules, while released files have one tensor for each expert.
Training reads these files (fp8 files, too), and exports contain the tensors of the base again, so every program that loads the base can
load them. A conversion that does more than move values (`inkling2_text`) is refused by name.

`plan` and the log give the active and the total parameters of a mixture of experts. With transformers 5, `train.compile: auto` compiles
the blocks of experts; transformers 4 computes experts in a loop, which is slow.

`llm_sft` adds the load-balancing loss of the experts with the weight of the base's own config.json (`router_aux_loss_coef`; not for
gpt-oss, which only repeats a default); `options.router_aux_loss_coef` sets another weight, and 0 none. It is a mean over samples, so it
does not depend on micro-batches and ranks. The log shows it as `expert_balance`, and it is no part of the validation loss. The other
recipes train without it, and their logs say so.

LoRA also adapts experts, with either version of transformers. Each expert has its own A and B of rank `model.lora.rank` for each
parameter, so gate and up projection share one if they are in one parameter. `model.lora.targets: all-linear`, the default of `llm_sft`,
includes all experts; a pattern matches the names of the parameters, such as `model.layers.0.mlp.experts.gate_up_proj`. `plan` and the log
report the share of the linear weights that adapters reach. For these experts, `model.lora.dropout` and `model.lora.dora` are refused, and
`model.quantization: nf4` packs linear layers only; a pattern without experts lifts all three limits. The experts of DBRX stay frozen.

`--adapter-only` writes the parameter names of the version of transformers that trained the adapter, and experts in the form of peft 0.19
and newer. `tests/recipes/llm_sft/test_converted_bases.py` compares the merged export with peft's model.
"""


HEAD_OF_ARCHITECTURES = """# What works for which architecture

[Models](../../docs/models.md) has the released models. `python -m tests.model_sweep` tries each verb on a tiny random model of an
architecture, and compares the result with stock transformers, which computes the rows one by one. A cell names the versions of
transformers if they differ. `no estimate`: `plan` prints a reason instead. `refused`: before training, with a message, in the last column
for packing or else for the first refusal. –: not tried yet.

"""
VERBS = ("full", "LoRA", "packing", "plan", "export", "generate")


def results() -> list[Path]:
    return sorted((HERE / "results").glob("*.md"))


def question(result: Path) -> str:
    """Return what a benchmark measures: the first line of its file's docstring."""
    text = ast.get_docstring(ast.parse((HERE / f"{result.stem}.py").read_text(encoding="utf-8"))) or ""
    return text.splitlines()[0]


def list_benchmarks() -> str:
    """workshop/lab_book/benchmarks.md: a line for each benchmark, with the link to its table."""
    return HEAD + "".join(f"- [{result.stem}](../benchmarks/results/{result.name}): {question(result)}\n" for result in results())


def models_page() -> str:
    """docs/models.md: the table of the released models, which quantized bases can be trained, and how experts are."""
    text = (HERE / "results" / "models_table.md").read_text(encoding="utf-8")
    table = text.removesuffix(f"{find_record(text)}\n").strip()
    return f"{HEAD_OF_MODELS}\n{table}\n{QUANTIZED_BASES}{EXPERTS}"


def architectures_page() -> str:
    """workshop/lab_book/architectures.md: what `tests/model_sweep` found for each architecture, with each version of transformers."""
    files_of = {path.stem.rpartition("_")[2]: path for path in sorted((HERE / "results").glob("model_sweep_*.json"))}
    tables = {version: json.loads(path.read_text(encoding="utf-8")) for version, path in files_of.items()}
    names = list(dict.fromkeys(name for table in tables.values() for name in table))
    whole = [name for name in names if all(is_right(table.get(name, {})) for table in tables.values())]
    lines = [[f"architecture (transformers {', '.join(tables)})", *VERBS, "reason"], ["---"] * (len(VERBS) + 2)]
    for name in names:
        if name in whole:
            continue
        found = {version: table[name] for version, table in tables.items() if name in table}
        lines.append([f"`{name}`", *(describe_verdicts(verb, found, set(tables)) for verb in VERBS), find_reason(found)])
    listed = textwrap.fill(", ".join(f"`{name}`" for name in whole), 140, break_on_hyphens=False)
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"{HEAD_OF_ARCHITECTURES}Everything is right, with all versions, for:\n{listed}.\n\n{table}"


def is_right(row: dict[str, list[str]]) -> bool:
    return {row.get(verb, ["–"])[0] for verb in VERBS} == {"right"}


def describe_verdicts(verb: str, found: dict[str, dict[str, list[str]]], versions: set[str]) -> str:
    """The verdicts of a verb in the versions; one word if they agree."""
    kinds = {version: found[version][verb][0] if version in found else "–" for version in sorted(versions)}
    return (
        next(iter(kinds.values())) if len(set(kinds.values())) == 1 else "; ".join(f"{version}: {kind}" for version, kind in kinds.items())
    )


def find_reason(found: dict[str, dict[str, list[str]]]) -> str:
    reasons = [table[verb][1] for table in found.values() for verb in ("packing", *VERBS) if table[verb][1]]
    return re.sub(r" \([^)]*\)", "", reasons[0].partition(": ")[2]).replace("|", "\\|") if reasons else ""  # the measured values of one run


def with_hardware(page: str) -> str:
    """docs/plan.md with the table of the GPUs that the models need."""
    text = (HERE / "results" / "hardware_table.md").read_text(encoding="utf-8")
    head, rule, *rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    chosen = [head.index(name) for name in HARDWARE_COLUMNS]
    table = "\n".join(f"| {' | '.join(row[at] for at in chosen)} |" for row in (head, rule, *rows))
    return _between(page, HARDWARE, END_OF_HARDWARE, table)


def _between(page: str, begin: str, end: str, text: str) -> str:
    before, _, rest = page.partition(begin)
    _, _, after = rest.partition(end)
    return f"{before}{begin}\n{text}\n{end}{after}"


if __name__ == "__main__":
    plan = ROOT / "docs" / "plan.md"
    files.write_text(HERE.parent / "lab_book" / "benchmarks.md", list_benchmarks())
    files.write_text(HERE.parent / "lab_book" / "architectures.md", architectures_page())
    files.write_text(ROOT / "docs" / "models.md", models_page())
    files.write_text(plan, with_hardware(plan.read_text(encoding="utf-8")))
