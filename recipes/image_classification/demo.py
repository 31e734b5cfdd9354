"""make demo-images: a tiny random ViT learns to read real handwritten digits, on a CPU in two minutes, with each of three seeds.

It runs the commands of a user: data preparation, training in two processes, and export. Then plain transformers reads the digits that were
held out. The result is the share of them that is read correctly; all figures are in runs/demo-images/summary.json.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoImageProcessor, AutoModelForImageClassification, pipeline

from overtone.data_prep.images.image_decoding import decode_image
from overtone.finetune.command_lines import overtone_command
from overtone.finetune.monitoring.run_records import LOG, read_log
from overtone.finetune.storage import files, strict_json
from overtone.finetune.storage.model_security import admit
from overtone.finetune.storage.text_lines import read_lines
from overtone.finetune.terminal import print_diagnostic
from overtone.recipes import demo_runner

from .model.modeling import image_classifier

HERE = Path(__file__).resolve().parent
BATCH_SIZE = 64
PROMISED = 0.96
"""Share of the held-out digits that every seed reads correctly."""


def main(argv: list[str]) -> int:
    """Run all stages in runs/demo-images, which is emptied first, and print what the model learned. Returns 1 if that is too little."""
    parser = argparse.ArgumentParser(
        prog="python -m overtone.recipes.image_classification.demo",
        description="Train on handwritten digits.",
        allow_abbrev=False,
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="N", help="train once with each (default: 0 1 2)")
    seeds, home = parser.parse_args(argv).seeds, Path("runs/demo-images")
    return demo_runner.run_demo(home, make_commands(home, seeds), partial(measure, seeds=seeds))


def make_commands(home: Path, seeds: list[int]) -> dict[str, list[str]]:
    """By stage: write the digits as images, prepare them, and for each seed make a tiny base, train and export."""
    python, digits, data = sys.executable, home / "digits", home / "data"
    commands = {
        "digits": [python, "-m", "overtone.recipes.image_classification.digit_images", str(digits)],
        "data": [python, "-m", "overtone", "images", str(digits), "--out", str(data), "--val-share", "0.2"],
    }
    rows = ["--data.train", data / "train.jsonl", "--data.val", data / "val.jsonl"]
    for seed in seeds:
        base, run = home / f"base-{seed}", home / f"run-{seed}"
        own = ["--model.source", base, "--run.dir", run, "--run.seed", seed]
        training = ["--recipe", "image_classification", "--config", HERE / "debug.yaml", *rows, *own]
        commands |= {
            f"base {seed}": [python, "-m", "overtone.recipes.image_classification.model.tiny_checkpoint", str(base), "--seed", str(seed)],
            f"train {seed}": demo_runner.training_command("cpu.yaml", [], training),
            f"export {seed}": [python, "-m", "overtone", "export", str(run), "--to", str(home / f"export-{seed}")],
        }
    return commands


def measure(home: Path, seconds: demo_runner.Seconds, seeds: list[int]) -> int:
    """Read the held-out digits with each export, write the figures to summary.json, and print them. Returns 1 if they are too low."""
    seconds = dict(seconds)
    with demo_runner.time_stage(seconds, "reading"):
        accuracies = {seed: measure_accuracy(home / f"export-{seed}", home / "data" / "val.jsonl") for seed in seeds}
    figures = make_summary(home, seconds, accuracies)
    files.write_json(home / demo_runner.SUMMARY, figures)
    print_summary(home, figures)
    if figures["lowest_accuracy"] < PROMISED:
        print_diagnostic(f"error: {figures['lowest_accuracy']:.1%} is less than the promised {PROMISED:.0%}")
    return int(figures["lowest_accuracy"] < PROMISED)


def measure_accuracy(model: Path, rows: Path) -> float:
    """The share of the rows whose label transformers' own pipeline puts first. No code of this package classifies the images.

    `model`: a folder that AutoModelForImageClassification and AutoImageProcessor load.
    """
    found = [strict_json.loads_object(line) for line in read_lines(rows)]
    with admit(model, image_classifier()) as clean:
        processor = AutoImageProcessor.from_pretrained(clean, trust_remote_code=False)
        network = AutoModelForImageClassification.from_pretrained(clean, trust_remote_code=False, use_safetensors=True)
    classify = pipeline("image-classification", model=network, image_processor=processor, device="cpu")
    guesses = classify([decode_image(rows.parent / row["image"]).image for row in found], batch_size=BATCH_SIZE, top_k=1)
    return round(sum(guess[0]["label"] == row["label"] for guess, row in zip(guesses, found, strict=True)) / len(found), 4)


def make_summary(home: Path, seconds: demo_runner.Seconds, accuracies: dict[int, float]) -> dict[str, Any]:
    """The content of summary.json. `accuracies`: by seed."""
    runs = {seed: home / f"run-{seed}" for seed in accuracies}
    untrained = next(event for event in read_log(next(iter(runs.values())) / LOG) if event["event"] == "evaluation")
    return {
        "held_out_images": len(read_lines(home / "data" / "val.jsonl")),
        "accuracy_before": round(untrained["val/accuracy"], 4),
        "lowest_accuracy": min(accuracies.values()),
        "seeds": {str(seed): {"accuracy": share, **demo_runner.summarize_training(runs[seed])} for seed, share in accuracies.items()},
        "seconds": demo_runner.add_total(seconds),
    }


def print_summary(home: Path, figures: dict[str, Any]) -> None:
    """Print the result, and where to find more."""
    shares = ", ".join(f"{each['accuracy']:.1%} with seed {seed}" for seed, each in figures["seeds"].items())
    first = next(iter(figures["seeds"]))
    training = [seconds for stage, seconds in figures["seconds"].items() if stage.startswith("train ")]
    demo_runner.print_result(
        f"{figures['held_out_images']} held-out digits, read correctly: {figures['accuracy_before']:.1%} before training; after training, "
        f"{shares}. Training took up to {max(training):.0f} s; all {figures['seconds']['all']:.0f} s",
        {
            "try it": overtone_command("generate", "--model", home / f"export-{first}", "--image", home / "digits" / "7" / "0007.pgm"),
            "the images": home / "data" / "report.html",
            "the loss curve": home / f"run-{first}" / "loss.png",
            "all figures": home / demo_runner.SUMMARY,
        },
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
