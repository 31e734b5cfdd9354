"""Command line of the package (`python -m finetune VERB …` or `finetune VERB …`): imports and runs the module of the verb."""

from __future__ import annotations

import importlib
import signal
import sys

from overtone import __version__
from overtone.finetune.argument_parsing import suggest_word
from overtone.finetune.storage.folder_handles import name_paths
from overtone.finetune.terminal import print_diagnostic, print_line, protect_terminal

VERBS = {
    "train": "fine-tune a model: on one GPU, with --launch fsdp2 on all of them",
    "ray-train": "fine-tune on the workers of a Ray cluster, which restarts them after a failure",
    "ray-tune": "tune hyperparameters on a Ray cluster: draw settings, train each, stop those that fall behind, report the best",
    "plan": "plan a run before it starts: config, memory, strategy, launch file, problems, first batch",
    "export": "export a checkpoint as a folder that the model's own package loads",
    "generate": "generate speech or text with an exported model",
    "chat": "chat with an exported model",
    "eval-voice": "evaluate a voice: intelligibility, speaker similarity, speaking rate; and the effect of training",
    "select": "choose the best checkpoint and strength of a run, for a voice by what it speaks",
    "serve": "serve exported models: a web page and an API",
    "check": "verify all checkpoints of a run",
    "verify-audio": "report which audio files are marked as synthetic speech, and the model that made them",
    "ls": "list runs with their state, step and best loss; exports; recipes",
    "translate": "translate a DeepSpeed or accelerate config into a launch file and a config",
    "cp": "copy a recipe, its config or a launch file, to change it",
    "where": "print the paths of the installed recipes and launch files",
    "schema": "print the JSON schema of the config, for editors",
}

MODULES = {
    "train": "overtone.finetune.train",
    "ray-train": "overtone.finetune.ray_train",
    "ray-tune": "overtone.finetune.cli.ray_tune",
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
    **dict.fromkeys(("merge", "fuse", "merge-lora", "convert", "save"), "export: `finetune export RUN --to FOLDER` merges adapters"),
    **dict.fromkeys(("push", "upload", "push-to-hub"), "export: `finetune export RUN --to FOLDER --push-to-hub NAME`"),
    **dict.fromkeys(("resume", "continue", "restart"), "train: the command that started the run resumes it"),
    **dict.fromkeys(("fit", "finetune", "sft", "lora", "run"), "train"),
    **dict.fromkeys(("eval", "evaluate", "test", "score"), "eval-voice for a voice; for a chat model, train evaluates on --data.val"),
    **dict.fromkeys(("infer", "inference", "predict", "sample", "speak", "synthesize", "tts", "say"), "generate"),
    **dict.fromkeys(("ask", "talk", "repl"), "chat"),
    **dict.fromkeys(("api", "webui", "ui", "server", "deploy", "demo"), "serve"),
    **dict.fromkeys(("estimate", "memory", "dry-run", "info"), "plan"),
    **dict.fromkeys(("tune", "sweep", "search"), "ray-tune"),
    **dict.fromkeys(("list", "runs", "status"), "ls"),
    **dict.fromkeys(("copy", "init", "new"), "cp"),
    **dict.fromkeys(("verify", "validate"), "check for checkpoints, verify-audio for synthetic speech"),
    **dict.fromkeys(("prepare", "prep", "preprocess", "voice", "codes", "text", "images", "report", "review"), "the command data_prep"),
}
"""What other tools call a verb → the verb that does it here."""


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print_line("usage: finetune VERB …\n\n" + "\n".join(f"  {verb:<10} {text}" for verb, text in VERBS.items()))
        print_line("\n`finetune VERB --help` describes a verb, `finetune --version` prints the version.")
        return 0
    if argv[0] == "--version":
        print_line(f"overtone {__version__}")
        return 0
    if argv[0] not in VERBS:
        known = OTHER_NAMES.get(argv[0].lower())
        hint = suggest_word(argv[0], VERBS, "verbs") if known is None else f"this is {known}"
        print_diagnostic(f"error: unknown verb {argv[0]!r}; {hint}")
        return 2
    name_paths(argv)  # here, since some verbs hand their arguments to a recipe
    try:
        module = importlib.import_module(MODULES.get(argv[0], f"overtone.finetune.cli.{argv[0]}"))
    except KeyboardInterrupt:  # later ones are the verb's
        print_diagnostic("interrupted")
        return 128 + signal.SIGINT
    return int(module.main(argv[1:]))


def console() -> int:
    protect_terminal()
    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(console())
