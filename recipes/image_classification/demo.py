"""make demo-images: a tiny random ViT learns to read real handwritten digits, on a CPU in two minutes, with each of three seeds.

It runs the commands of a user: data preparation, training in two processes, and export. Then plain transformers reads the digits that were
held out. The result is the share of them that is read correctly; all figures are in runs/demo-images/summary.json.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from transformers import AutoImageProcessor, AutoModelForImageClassification, pipeline

from data_prep.images.image_decoding import decode_image
from finetune.monitoring.run_records import LOG, read_log
from finetune.storage import files, strict_json
from finetune.storage.model_security import admit
from recipes import demo_runner

from .classifier_model import image_classifier

HERE = Path(__file__).resolve().parent
SEEDS = (0, 1, 2)
"""Of the initial weights, the order of the images, and their crops."""
BATCH_SIZE = 64


def main() -> int:
    """Run all stages in runs/demo-images, which is emptied first, and print what the model learned."""
    home = Path("runs/demo-images")
    return demo_runner.run_demo(home, make_commands(home), measure)


def make_commands(home: Path) -> dict[str, list[str]]:
    """By stage: write the digits as images, prepare them, and for each seed make a tiny base, train and export."""
    python, digits, data = sys.executable, home / "digits", home / "data"
    commands = {
        "digits": [python, "-m", "recipes.image_classification.make_digits", str(digits)],
        "data": [python, "-m", "data_prep", "images", str(digits), "--out", str(data), "--val-share", "0.2"],
    }
    rows = ["--data.train", data / "train.jsonl", "--data.val", data / "val.jsonl"]
    for seed in SEEDS:
        base, run = home / f"base-{seed}", home / f"run-{seed}"
        own = ["--model.source", base, "--run.dir", run, "--run.seed", seed]
        training = ["--recipe", "image_classification", "--config", HERE / "debug.yaml", *rows, *own]
        commands |= {
            f"base {seed}": [python, "-m", "recipes.image_classification.tiny_checkpoint", str(base), "--seed", str(seed)],
            f"train {seed}": demo_runner.training_command("cpu.yaml", [], training),
            f"export {seed}": [python, "-m", "finetune", "export", str(run), "--to", str(home / f"export-{seed}")],
        }
    return commands


def measure(home: Path, seconds: demo_runner.Seconds) -> int:
    """Read the held-out digits with each export, write the figures to summary.json, and print them."""
    seconds = dict(seconds)
    with demo_runner.time_stage(seconds, "reading"):
        accuracies = {seed: measure_accuracy(home / f"export-{seed}", home / "data" / "val.jsonl") for seed in SEEDS}
    figures = make_summary(home, seconds, accuracies)
    files.write_json(home / demo_runner.SUMMARY, figures)
    print_summary(home, figures)
    return 0


def measure_accuracy(model: Path, rows: Path) -> float:
    """The share of the rows whose label transformers' own pipeline puts first. No code of this package classifies the images.

    `model`: a folder that AutoModelForImageClassification and AutoImageProcessor load.
    """
    found = [strict_json.loads_object(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    with admit(model, image_classifier()) as clean:
        processor = AutoImageProcessor.from_pretrained(clean, trust_remote_code=False)
        network = AutoModelForImageClassification.from_pretrained(clean, trust_remote_code=False, use_safetensors=True)
    classify = pipeline("image-classification", model=network, image_processor=processor, device="cpu")
    guesses = classify([decode_image(rows.parent / row["image"]).image for row in found], batch_size=BATCH_SIZE, top_k=1)
    return round(sum(guess[0]["label"] == row["label"] for guess, row in zip(guesses, found, strict=True)) / len(found), 4)


def make_summary(home: Path, seconds: dict[str, float], accuracies: dict[int, float]) -> dict[str, Any]:
    """The content of summary.json."""
    logs = {seed: read_log(home / f"run-{seed}" / LOG) for seed in accuracies}
    steps = {seed: [event for event in log if event["event"] == "step"] for seed, log in logs.items()}
    before = [event["val/accuracy"] for log in logs.values() for event in log if event["event"] == "evaluation"][:1]
    return {
        "held_out_images": len((home / "data" / "val.jsonl").read_text(encoding="utf-8").splitlines()),
        "accuracy_before": round(before[0], 4),
        "accuracy": {str(seed): share for seed, share in accuracies.items()},
        "lowest_accuracy": min(accuracies.values()),
        "steps": max(event["step"] for each in steps.values() for event in each),
        "loss": {str(seed): {"first": each[0]["loss"], "last": each[-1]["loss"]} for seed, each in steps.items()},
        "seconds": demo_runner.add_total(seconds),
    }


def print_summary(home: Path, figures: dict[str, Any]) -> None:
    """Print the result, and where to find more."""
    shares = ", ".join(f"{share:.1%}" for share in figures["accuracy"].values())
    training = [seconds for stage, seconds in figures["seconds"].items() if stage.startswith("train ")]
    demo_runner.print_result(
        f"{figures['held_out_images']} held-out digits, read correctly: {figures['accuracy_before']:.1%} before training; after training "
        f"with {len(figures['accuracy'])} seeds {shares}. Training took up to {max(training):.0f} s; all {figures['seconds']['all']:.0f} s",
        {
            "try it": f"python -m finetune generate --model {home / 'export-0'} --image {home / 'digits' / '7' / '0007.pgm'}",
            "the images": home / "data" / "report.html",
            "the loss curve": home / "run-0" / "loss.png",
            "all figures": home / demo_runner.SUMMARY,
        },
    )


if __name__ == "__main__":
    sys.exit(main())
