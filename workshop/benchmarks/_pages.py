"""Writes the list of benchmarks, docs/models.md, and the table of GPUs in docs/plan.md from results/; `make bench` calls it last."""

from __future__ import annotations

import ast
import json
import sys
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
`workshop/benchmarks/_pages.py` writes this page. `llm_dpo` and `llm_reward` train the models of `llm_sft`.
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

The dequantization code is our own and works the same way with transformers 4.57 and 5. transformers itself dequantizes mxfp4 in both
versions, to the same values. It dequantizes fp8 only in version 5, and computes the block size from the shapes there, which is wrong if the
last block is smaller. An export has plain weights, in the type that config.json names (`dtype`), and declares no quantization.
`tests/recipes/llm_sft/test_quantized_bases.py` compares training on an fp8 base with training on its dequantized weights.
"""


HEAD_OF_SWEEP = """
## Experts and renamed modules

transformers 5 stores all experts of a layer in one parameter and renames modules, while released files have one tensor for each expert.
Training reads these files (fp8 files, too) slice by slice, and checkpoints contain the model's parameters. Exports contain the tensors of
the base again, so every program that loads the base can load them. The conversions are those of the installed transformers; a conversion
that does more than move values (`inkling2_text`) is refused by name.

`plan` and the log of a mixture of experts give its active and its total parameters. transformers 5 computes all experts of a layer in one
grouped product, so `train.compile: auto` compiles their blocks; transformers 4 computes them in a loop, which is slow.

`llm_sft` adds the load-balancing loss of the experts with the weight that the base's own config.json states (`router_aux_loss_coef`), as it
was trained with; `options.router_aux_loss_coef` sets another weight, and 0 none. gpt-oss only repeats the default of transformers, which is
not used. It is the loss that transformers computes, but a mean over samples, each over its own positions, so it does not depend on how the
samples are divided into micro-batches and ranks. The log shows it as `expert_balance`, and it is no part of the validation loss. The other
recipes train without it, and their logs say so.

LoRA also adapts such experts, with either version of transformers, including those of gpt-oss, Llama 4, Granite and JetMoE, which are one
parameter in the released files. Each expert has its own A and B of rank `model.lora.rank` for each parameter, so gate and up projection
share one if they are in one parameter. `model.lora.targets: all-linear`, the default of `llm_sft`, includes all experts; a pattern matches
the names of the parameters, such as `model.layers.0.mlp.experts.gate_up_proj`. `plan` and the log report the share of the linear weights
that adapters reach. Results, gradients and merged weights equal those of peft's `target_parameters`, but x·W + s·(x·A)·B is computed
without a copy of W + s·B·A for the backward pass. As in peft, `model.lora.dropout` and `model.lora.dora` are refused for these experts, and
`model.quantization: nf4` packs linear layers only; these three limits do not apply if the pattern excludes the experts. The experts of DBRX
have two axes, and stay frozen.

`--adapter-only` writes the parameter names of the version of transformers that trained the adapter, and experts in the form that peft 0.19
and newer expect. Some layers of such a model look like experts to peft 0.21 (shared experts, the dense layers of DeepSeek-V3). They are
listed in `target_parameters` as well, because peft would drop their update if they were in `target_modules`.
`tests/recipes/llm_sft/test_converted_bases.py` compares the logits of the merged export with those of `AutoPeftModelForCausalLM`.

## Architectures

`python -m tests.model_sweep` tries each verb on a tiny random model of an architecture, and compares the result with stock transformers,
which computes the rows one by one. If the results differ between the installed versions of transformers, a cell names the versions.
`no estimate` means that `plan` prints a reason instead of an estimate. A refusal comes before training, with a message of one sentence; the
last column has the message for packing, or else the first one. – means that the combination has not been tried yet.

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
    """docs/models.md: the table of the released models, which quantized bases can be trained, and what works for which architecture."""
    text = (HERE / "results" / "models_table.md").read_text(encoding="utf-8")
    table = text.removesuffix(f"{find_record(text)}\n").strip()
    return f"{HEAD_OF_MODELS}\n{table}\n{QUANTIZED_BASES}{sweep_section()}"


def sweep_section() -> str:
    """Return what `tests/model_sweep` found for each architecture, with each version of transformers."""
    files_of = {path.stem.rpartition("_")[2]: path for path in sorted((HERE / "results").glob("model_sweep_*.json"))}
    tables = {version: json.loads(path.read_text(encoding="utf-8")) for version, path in files_of.items()}
    names = list(dict.fromkeys(name for table in tables.values() for name in table))
    lines = [[f"architecture (transformers {', '.join(tables)})", *VERBS, "reason"], ["---"] * (len(VERBS) + 2)]
    for name in names:
        found = {version: table[name] for version, table in tables.items() if name in table}
        lines.append([f"`{name}`", *(describe_verdicts(verb, found, set(tables)) for verb in VERBS), find_reason(found)])
    return HEAD_OF_SWEEP + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def describe_verdicts(verb: str, found: dict[str, dict[str, list[str]]], versions: set[str]) -> str:
    """The verdicts of a verb in the versions; one word if they agree."""
    kinds = {version: found[version][verb][0] if version in found else "–" for version in sorted(versions)}
    return (
        next(iter(kinds.values())) if len(set(kinds.values())) == 1 else "; ".join(f"{version}: {kind}" for version, kind in kinds.items())
    )


def find_reason(found: dict[str, dict[str, list[str]]]) -> str:
    reasons = [table[verb][1] for table in found.values() for verb in ("packing", *VERBS) if table[verb][1]]
    return reasons[0].partition(": ")[2].replace("|", "\\|") if reasons else ""


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
    files.write_text(ROOT / "docs" / "models.md", models_page())
    files.write_text(plan, with_hardware(plan.read_text(encoding="utf-8")))
