"""Choose the best checkpoint and strength of a run by what they speak: WER, speaker similarity, pace and endings.

overtone select runs/me --data data/me/val.jsonl --asr small
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overtone.data_prep import manifest
from overtone.data_prep.audio_codecs.interface import SpeakerEncoder
from overtone.data_prep.speakers import resemblyzer_encoder
from overtone.finetune.argument_parsing import parse_arguments
from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.errors import UserError
from overtone.finetune.exporting import export, selection_record
from overtone.finetune.storage import files
from overtone.finetune.terminal import print_line
from overtone.recipes.speech.cli.evaluation_arguments import find_encoder
from overtone.recipes.speech.cli.text_inputs import read_lines
from overtone.recipes.speech.evaluation import evaluation_items, intelligibility, scoring, systems
from overtone.recipes.speech.evaluation.evaluation_items import Check, Item, normalize
from overtone.recipes.speech.evaluation.metric_aggregation import LEAST_TEXTS
from overtone.recipes.speech.evaluation.systems import RECORDINGS, Take
from overtone.recipes.speech.interface import SpeechRecipe, SpeechRequest, SpeechSampling
from overtone.recipes.speech.selection import candidate_measures, candidates, result_rendering, selection_page
from overtone.recipes.speech.selection.candidate_measures import ClipRuler, ComparedClip
from overtone.recipes.speech.selection.candidate_ranking import DEFAULT_WEIGHTS, MEASURES, PACE, decide
from overtone.recipes.speech.selection.candidates import VoiceCandidate
from overtone.recipes.speech.selection.result_rendering import SelectionResult
from overtone.recipes.speech.selection.stratified_texts import SpokenTexts, choose_texts

STRENGTHS = (0.4, 0.7, 1.0)
PICTURE, PAGE, CANDIDATES = "selection.png", "selection.html", "candidates"


@dataclass(frozen=True)
class SelectionPlan:
    """A selection that was checked and can start."""

    recipe: SpeechRecipe
    run: Path
    candidates: list[VoiceCandidate]
    texts: SpokenTexts
    recordings: list[Item]
    """All rows of the data: the speaker's real clips."""
    encoder: SpeakerEncoder | None
    """Of the base model; None: the independent one of `args.speaker_model` measures the similarity."""
    notes: list[str]
    args: argparse.Namespace

    @property
    def folder(self) -> Path:
        """For everything that the selection writes."""
        return selection_record.folder_of(self.run)


def parse(argv: list[str]) -> argparse.Namespace:
    """The verb's own arguments."""
    parser = argparse.ArgumentParser(prog="overtone select RUN", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="ROWS.jsonl", help="rows with text, speaker and audio (recordings)")
    parser.add_argument("--text-file", type=Path, metavar="FILE", help="texts to speak instead of those of --data, one per line, or .jsonl")
    parser.add_argument("--speaker", help="speaker of rows and lines without a speaker")
    parser.add_argument("--asr", required=True, metavar="MODEL", help="Whisper model for transcripts, as in eval-voice: small, a .pt file")
    parser.add_argument(
        "--speaker-model",
        metavar="MODEL",
        help="independent speaker encoder, as in eval-voice (default: resemblyzer, if it is installed, else that of the base)",
    )
    parser.add_argument("--strengths", type=float, nargs="+", default=STRENGTHS, metavar="S", help="of the update (default: 0.4 0.7 1)")
    parser.add_argument("--checkpoints", default="all", metavar="all|STEP,STEP", help="default: all that are kept")
    parser.add_argument("--texts", type=int, default=24, metavar="N", help="number of texts to speak (default %(default)s)")
    weights = " ".join(f"{name}={weight:g}" for name, weight in DEFAULT_WEIGHTS.items())
    parser.add_argument(
        "--weights", nargs="+", default=[], metavar="MEASURE=W", help=f"of the measures in the cost (default: {weights}); 0 leaves one out"
    )
    parser.add_argument("--batch", type=int, default=8, help="texts per batch (default %(default)s)")
    parser.add_argument("--greedy", action="store_true", help="always take the most likely token instead of sampling")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampling, the same for each candidate (default %(default)s)")
    parser.add_argument("--max-seconds", type=float, default=30.0, help="time limit; longer speech is cut off (default %(default)g)")
    return parse_arguments(parser, argv)


def select(recipe: SpeechRecipe, run: Path, argv: list[str]) -> int:
    """Body of the verb. Raises `UserError` for what cannot be compared, before any model is loaded, and if another selection of the run is
    at work."""
    args = parse(argv)
    weights = parse_weights(args.weights)
    plan = make_plan(recipe, run, args)
    lock = files.lock_folder(plan.folder)
    try:
        clips, real = measure_all(plan)
        result = make_result(plan, clips, real, weights)
        write_results(plan, result, {**clips, **({RECORDINGS: real} if real else {})})
    finally:
        os.close(lock)
    return 0


def parse_weights(words: Sequence[str]) -> dict[str, float]:
    """`wer=2` and the like over the defaults. Raises `UserError` for another measure or value, and if none counts."""
    weights = dict(DEFAULT_WEIGHTS)
    for word in words:
        name, _, text = word.partition("=")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if name not in MEASURES or not 0 <= value < math.inf:
            raise UserError(f"--weights {word}: give MEASURE=NUMBER with one of {', '.join(MEASURES)} and a number from 0 on")
        weights[name] = value
    if not any(weights.values()):
        raise UserError("--weights: all are 0; at least one measure must count")
    return weights


def make_plan(recipe: SpeechRecipe, run: Path, args: argparse.Namespace) -> SelectionPlan:
    """Check the arguments, the checkpoints with their bases, and every row. Raises `UserError`."""
    check_numbers(args)
    found, notes = selection_record.find_candidates(run)
    if args.checkpoints != "all":
        wanted = {checkpoint.step_of(path) for path in systems.list_checkpoints(run, args.checkpoints)}
        found = [path for path in found if checkpoint.step_of(path) in wanted]
    listed = candidates.list_candidates(found, args.strengths)
    check_bases(found, recipe)

    def check(item: Item) -> None:
        for path in found:
            systems.check_item(recipe, VoiceCandidate(path, 1.0).system, item)

    rows = evaluation_items.read_items(args.data, args.speaker, None, check)
    items = rows if args.text_file is None else read_text_file(args.text_file, rows, args.speaker, check)
    texts = choose_texts(items, args.texts)
    if len(texts.items) < LEAST_TEXTS:
        raise UserError(f"{args.text_file or args.data}: {len(texts.items)} different texts are too few to choose by; give {LEAST_TEXTS}")
    check_recordings(texts.items, rows, args.data)
    intelligibility.check_whisper(args.asr)
    scoring.check_clips(rows)
    encoder, more = choose_encoder(recipe, listed, args)
    return SelectionPlan(recipe, run, listed, texts, rows, encoder, [*notes, *texts.notes, *more], args)


def read_text_file(path: Path, rows: Sequence[Item], speaker: str | None, check: Check) -> list[Item]:
    """The texts of `--text-file` as items. A line without a speaker is for `speaker`, or for the only one in `rows`; its language is
    that of the speaker's rows. Raises `UserError` with the line if neither is known, and for an item that `check` refuses."""
    known = {item.speaker for item in rows}
    usual = speaker or (next(iter(known)) if len(known) == 1 else None)
    items = []
    for line in read_lines(path, SpeechRequest("", usual)):
        request = line.request
        if request.speaker is None:
            raise UserError(f"{line.place}: who speaks it? The data has {', '.join(sorted(known))}; give --speaker NAME")
        if not normalize(request.text):
            raise UserError(f"{line.place}: {request.text!r} has no word in it; correct or remove the line")
        name = manifest.parse_speaker(request.speaker)
        languages = {item.language for item in rows if item.speaker == name}
        language = request.language or (next(iter(languages)) if len(languages) == 1 else manifest.AUTO)
        items.append(Item(f"text-{line.number:04d}", request.text, name, manifest.parse_language(language)))
        try:
            check(items[-1])
        except UserError as error:
            raise UserError(f"{line.place}: {error}") from None
    return items


def check_numbers(args: argparse.Namespace) -> None:
    """Raise `UserError` for a number that is out of range."""
    for strength in args.strengths:
        try:
            export.check_strength(strength)
        except UserError as error:
            raise UserError(str(error).replace("--strength", "--strengths")) from None
    for name, least in (("texts", LEAST_TEXTS), ("batch", 1)):
        if getattr(args, name) < least:
            raise UserError(f"--{name} {getattr(args, name)}: must be at least {least}")
    if not 0 < args.max_seconds < math.inf:
        raise UserError(f"--max-seconds {args.max_seconds:g}: must be more than 0")


def check_bases(found: Sequence[Path], recipe: SpeechRecipe) -> None:
    """Raise `UserError` if the base of a checkpoint is missing or was changed: every strength is computed from it."""
    known = list[dict[str, Any]]()
    for path in found:
        state = checkpoint.read_state(path)
        if state["base"] not in known:  # its digest takes as long as reading it
            export.find_base(state, recipe.base_folders, remedy="move it back, since every strength is computed from it")
            known.append(state["base"])


def check_recordings(items: Sequence[Item], rows: Sequence[Item], data: Path) -> None:
    """Raise `UserError` for a speaker without a real clip of another text, to which the speech of a text could be similar."""
    clips: dict[str, set[Path | None]] = {}
    for row in rows:
        clips.setdefault(row.speaker, {None}).update((row.recording, row.reference))
    if missing := sorted({item.speaker for item in items if not clips.get(item.speaker, {None}) - {None, item.recording}}):
        raise UserError(
            f"{data} has no clip of {', '.join(missing)}, or none besides the recording of a text that is spoken, so the similarity cannot "
            "be measured; add rows with audio"
        )


def choose_encoder(
    recipe: SpeechRecipe, listed: Sequence[VoiceCandidate], args: argparse.Namespace
) -> tuple[SpeakerEncoder | None, list[str]]:
    """The encoder of the base, or None with `args.speaker_model` set to an independent one; and notes. Raises `UserError` if there is
    neither."""
    if args.speaker_model is None and resemblyzer_encoder.find_weights() is not None:
        args.speaker_model = resemblyzer_encoder.NAME
    if args.speaker_model is not None:
        if args.speaker_model == resemblyzer_encoder.NAME and resemblyzer_encoder.find_weights() is None:
            raise UserError(f"--speaker-model {args.speaker_model}: it is not installed; run: {resemblyzer_encoder.INSTALL}")
        return None, []
    encoder, problems = find_encoder(recipe, [listed[-1].system])
    if encoder is None:
        raise UserError(f"{problems[0]}; give --speaker-model MODEL, or run: {resemblyzer_encoder.INSTALL}")
    return encoder, [
        "The similarity is that of the base model's own encoder, which may overestimate it, because the model was trained with its "
        f"vectors; `{resemblyzer_encoder.INSTALL}` adds an independent one."
    ]


def measure_all(plan: SelectionPlan) -> tuple[dict[str, list[ComparedClip]], list[ComparedClip]]:
    """The clips of every candidate, and those of the recordings of the same texts. Measures that an earlier selection left are reused."""
    args, encoders = plan.args, scoring.load_encoders(plan.encoder, plan.args.speaker_model)
    for leftover in plan.folder.glob("export-*"):
        files.discard(leftover)  # of a selection that was killed
    # Before hours of generation, so that a problem of these models shows first.
    models = scoring.load_scoring_models([*plan.recordings, *plan.texts.items], encoders, args.asr)
    takes = [Take(item, item.recording, True) for item in plan.texts.items if item.recording is not None]
    sampling = SpeechSampling(greedy=args.greedy, seed=args.seed, max_seconds=args.max_seconds)
    ruler = ClipRuler(models, encoders[0], describe_settings(plan))
    clips, reused = dict[str, list[ComparedClip]](), 0
    for number, one in enumerate(plan.candidates, 1):
        found = ruler.restore(one, plan.texts.items, plan.folder / CANDIDATES)
        reused += found is not None
        print_line(f"{one.name} ({number} of {len(plan.candidates)}): {'speaking' if found is None else 'measured earlier'}")
        if found is None:
            spoken = speak_candidate(plan, one, sampling)
            found = ruler.measure(one, spoken, plan.texts.items, plan.folder / CANDIDATES)
        clips[one.name] = found
    if reused:
        print_line(f"{reused} of {len(plan.candidates)} candidates: measures of an earlier selection with the same texts and settings")
    return clips, [candidate_measures.judge(take, models) for take in takes]


def describe_settings(plan: SelectionPlan) -> dict[str, Any]:
    """What affects the measures, besides weights and texts."""
    args = plan.args
    chosen = {name: getattr(args, name) for name in ("asr", "speaker_model", "greedy", "seed", "max_seconds")}
    chosen |= intelligibility.describe_retry(args.asr)
    return {**chosen, "data": files.digest(args.data)}  # the similarity is that to the clips of all rows


def speak_candidate(plan: SelectionPlan, one: VoiceCandidate, sampling: SpeechSampling) -> list[Take]:
    """Export a candidate, speak all texts, and remove the export. One candidate is in memory at a time."""
    out = plan.folder / CANDIDATES / one.slug
    if out.exists():
        files.discard(out)  # of other texts or settings, or incomplete
    with systems.open_export(plan.recipe, one.system, files.make_folder(plan.folder)) as folder:
        return [*systems.speak(plan.recipe, one.system, folder, plan.texts.items, sampling, plan.args.batch, out)]


def make_result(
    plan: SelectionPlan, clips: Mapping[str, Sequence[ComparedClip]], real: Sequence[ComparedClip], weights: Mapping[str, float]
) -> SelectionResult:
    """Compare the candidates. A pace is measured if every speaker has recordings."""
    args, notes = plan.args, [*plan.notes, f"The WER is by the transcripts of {intelligibility.describe_recognizer(plan.args.asr)}."]
    expected = candidate_measures.expect_seconds(plan.texts.items, plan.recordings)
    if len(expected) < len(plan.texts.items):
        notes.append(f"Pace was measured on {len(expected)} of {len(plan.texts.items)} texts: the others' speakers have no recordings.")
    if not expected:
        weights = {**weights, PACE: 0.0}
    decision = decide(
        {name: candidate_measures.tabulate(own, expected) for name, own in clips.items()}, weights, [one.name for one in plan.candidates]
    )
    scored = [clip.scored for own in clips.values() for clip in own]
    if failed := sum(clip.transcript is None for clip in scored):
        notes.append(f"The transcription failed for {failed} clips, which are excluded from the WER.")
    notes += [f"All candidates: {note}" for note in scoring.describe_retries(scored)]
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    settings |= {"run": str(plan.run), "weights": dict(weights)}
    recorded = candidate_measures.tabulate(real, expected).sum(axis=0) if real else None
    return SelectionResult({one.name: one for one in plan.candidates}, decision, recorded, notes, settings)


def write_results(plan: SelectionPlan, result: SelectionResult, clips: Mapping[str, Sequence[ComparedClip]]) -> None:
    """Write plot, page and selection.json, which holds the choice; print the table."""
    reason, chosen = result_rendering.explain_choice(result.decision), result.chosen
    files.write_bytes(plan.folder / PICTURE, result_rendering.draw_plot(result))
    files.write_text(plan.folder / PAGE, selection_page.render_page(result, clips, plan.texts.kinds, plan.run.name))
    texts = [{"key": item.key, "kind": plan.texts.kinds[item.key], "speaker": item.speaker, "text": item.text} for item in plan.texts.items]
    record = {**result_rendering.build_record(result), "texts": texts}
    selection_record.write_selection(plan.run, chosen.checkpoint, chosen.strength, reason, record)
    print_line(result_rendering.render_table(result))
    for note in [*result.notes, result_rendering.CAUTION]:
        print_line(f"note: {note}")
    print_line(f"selected: {reason}")
    print_line(f"{plan.folder / PAGE}: open it in a browser and listen; {PICTURE} and {selection_record.RECORD} beside it have the figures")
