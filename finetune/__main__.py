"""Command line for training and for trained models (`python -m finetune VERB …` or `finetune VERB …`): imports only the module of the given
verb. `overtone` has these verbs too."""

from __future__ import annotations

import importlib
import sys

from overtone.finetune.errors import run_program
from overtone.finetune.storage.folder_handles import name_paths
from overtone.finetune.verb_dispatch import dispatch_verb, flatten_groups

GROUPS = {
    "Train": {
        "plan": "plan a run before it starts: config, memory, strategy, launch file, problems, first batch",
        "train": "fine-tune a model: on one GPU, with --launch fsdp2 on all of them",
        "ray-train": "fine-tune on the workers of a Ray cluster, which restarts them after a failure",
        "ray-tune": "tune hyperparameters on a Ray cluster: draw settings, train each, stop those that fall behind, report the best",
        "select": "choose the best checkpoint and strength of a run, for a voice by what it speaks",
        "eval-voice": "evaluate a voice: intelligibility, speaker similarity, speaking rate; and the effect of training",
        "pairs": "make pairs of clips that a voice speaks, judged, for preference optimization",
        "check": "verify all checkpoints of a run",
    },
    "Use the model": {
        "export": "export a checkpoint as a folder that the model's own package loads",
        "generate": "generate speech or text with an exported model",
        "chat": "chat with an exported model",
        "serve": "serve exported models: a web page and an API",
        "ray-serve": "serve exported models as replicas on a Ray cluster, more of them under load",
        "verify-audio": "report which audio files are marked as synthetic speech, and the model that made them",
    },
    "Runs and configs": {
        "ls": "list runs with their state, step and best loss; exports; recipes",
        "translate": "translate a DeepSpeed or accelerate config into a launch file and a config",
        "cp": "copy a recipe, its config or a launch file, to change it",
        "where": "print the paths of the installed recipes and launch files",
        "schema": "print the JSON schema of the config, for editors",
        "doctor": "describe this machine and installation, to paste into an issue",
    },
}
"""Heading → verb → what it does, in the order of the work."""
VERBS = flatten_groups(GROUPS)

MODULES = {
    "train": "overtone.finetune.train",
    "ray-train": "overtone.finetune.ray_train",
    "ray-tune": "overtone.finetune.cli.ray_tune",
    "ray-serve": "overtone.finetune.cli.ray_serve",
    "eval-voice": "overtone.finetune.cli.eval_voice",
    "select": "overtone.finetune.cli.select_checkpoint",
    "check": "overtone.finetune.cli.verify_checkpoints",
    "verify-audio": "overtone.finetune.cli.verify_synthetic_mark",
    "ls": "overtone.finetune.cli.list_runs",
    "translate": "overtone.finetune.cli.translate_launch_file",
    "cp": "overtone.finetune.cli.copy_recipe",
    "where": "overtone.finetune.cli.install_paths",
}
"""The module of each verb that does not bear the name of one in `finetune/cli/`."""

OTHER_NAMES = {
    **dict.fromkeys(("merge", "fuse", "merge-lora", "convert", "save"), "export: `overtone export RUN --to FOLDER` merges adapters"),
    **dict.fromkeys(("push", "upload", "push-to-hub"), "export: `overtone export EXPORTED_FOLDER --push-to-hub NAME`"),
    **dict.fromkeys(("resume", "continue", "restart"), "train: the command that started the run resumes it"),
    **dict.fromkeys(("fit", "finetune", "sft", "lora", "run"), "train"),
    **dict.fromkeys(("eval", "evaluate", "test", "score"), "eval-voice for a voice; for a chat model, train evaluates on --data.val"),
    **dict.fromkeys(("preferences", "make-pairs", "rank"), "pairs"),
    **dict.fromkeys(("infer", "inference", "predict", "sample", "speak", "synthesize", "tts", "say"), "generate"),
    **dict.fromkeys(("ask", "talk", "repl"), "chat"),
    **dict.fromkeys(("api", "server", "deploy", "demo"), "serve"),
    **dict.fromkeys(("webui", "ui", "gui", "web", "board", "dashboard"), "`overtone studio` for the whole way, or serve for a model"),
    **dict.fromkeys(("estimate", "memory", "dry-run", "info"), "plan"),
    **dict.fromkeys(("tune", "sweep", "search"), "ray-tune"),
    **dict.fromkeys(("list", "runs", "status"), "ls"),
    **dict.fromkeys(("env", "collect-env", "diagnose", "version-info"), "doctor"),
    **dict.fromkeys(("copy", "init", "new"), "cp"),
    **dict.fromkeys(("verify", "validate"), "check for checkpoints, verify-audio for synthetic speech"),
    **dict.fromkeys(("prepare", "prep", "preprocess"), "`overtone voice`, `overtone text` or `overtone images`"),
    **{verb: f"`overtone {verb}`" for verb in ("voice", "codes", "text", "images", "report", "review", "check-dataset", "export-dataset")},
}
"""Name of a verb in other tools → the verb that does the same here."""


def main(argv: list[str]) -> int:
    """Run the verb that `argv` names and return its exit code; 2 for an unknown verb."""
    return dispatch_verb("finetune", GROUPS, OTHER_NAMES, run_verb, argv)


def run_verb(verb: str, argv: list[str]) -> int:
    """Import and run a verb and return its exit code."""
    name_paths(argv)  # here, since some verbs hand their arguments to a recipe
    return int(importlib.import_module(MODULES.get(verb, f"overtone.finetune.cli.{verb}")).main(argv))  # noqa: TID251 - a verb from a fixed list


def console() -> int:
    """Entry point of the installed command."""
    return run_program(main)


if __name__ == "__main__":
    sys.exit(console())
