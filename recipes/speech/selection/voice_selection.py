"""The selection of the best checkpoint and strength of a run by what they speak: WER, speaker similarity, pace and endings."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from overtone.data_prep import manifest
from overtone.data_prep.audio_codecs.interface import SpeakerEncoder
from overtone.data_prep.speakers import resemblyzer_encoder
from overtone.finetune.checkpointing import checkpoint
from overtone.finetune.errors import UserError
from overtone.finetune.exporting import export, selection_record
from overtone.finetune.storage import files
from overtone.finetune.terminal import print_line
from overtone.recipes.speech.evaluation import evaluation_items, intelligibility, scoring, speaker_similarity, systems
from overtone.recipes.speech.evaluation.confidence_intervals import LEAST_TEXTS, least_texts
from overtone.recipes.speech.evaluation.evaluation_items import Check, Item, normalize
from overtone.recipes.speech.evaluation.systems import RECORDINGS, System, Take
from overtone.recipes.speech.interface import SpeechRecipe, SpeechRequest, SpeechSampling
from overtone.recipes.speech.selection import candidate_measures, candidates, result_rendering, selection_page
from overtone.recipes.speech.selection.candidate_measures import ClipRuler, ComparedClip
from overtone.recipes.speech.selection.candidate_ranking import DEFAULT_WEIGHTS, MEASURES, PACE, count_pairs, decide
from overtone.recipes.speech.selection.candidates import VoiceCandidate
from overtone.recipes.speech.selection.result_rendering import SelectionResult
from overtone.recipes.speech.selection.stratified_texts import SpokenTexts, choose_texts
from overtone.recipes.speech.spoken_text import clean_text
from overtone.recipes.speech.text_inputs import read_lines

STRENGTHS = (0.4, 0.7, 1.0)
PICTURE, PAGE, CANDIDATES = "selection.png", "selection.html", "candidates"


EXPECTED_WEIGHT = "give MEASURE=NUMBER with one of {} and a number from 0 on"


@dataclass(frozen=True)
class SelectionOptions:
    """Options of a selection; the fields are the flags of `overtone select` for a voice, whose help describes them."""

    data: Path
    asr: str
    text_file: Path | None = None
    speaker: str | None = None
    speaker_model: str | None = None
    strengths: tuple[float, ...] = STRENGTHS
    checkpoints: str = "all"
    texts: int = 24
    weights: Mapping[str, float] = field(default_factory=dict)
    """Measure → weight, for the measures whose weight differs from `DEFAULT_WEIGHTS`."""
    batch: int = 8
    greedy: bool = False
    seed: int = 0
    max_seconds: float = 30.0


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
    """Encoder of the base model; None: the independent one of `speaker_model` measures the similarity."""
    notes: list[str]
    speaker_model: str | None
    """The independent speaker encoder; None: `encoder` measures the similarity."""
    options: SelectionOptions

    @property
    def folder(self) -> Path:
        """The folder for everything that the selection writes."""
        return selection_record.folder_of(self.run)


def select_voice(recipe: SpeechRecipe, run: Path, options: SelectionOptions) -> SelectionResult:
    """Choose a checkpoint and a strength of a run, and write everything into its folder `selection`.

    Raises `UserError` for what cannot be compared, before any model is loaded, and if another selection of the run is in progress.
    """
    weights = complete_weights(options.weights)
    plan = make_plan(recipe, run, options)
    lock = files.lock_folder(plan.folder)
    try:
        clips, real = measure_all(plan)
        result = make_result(plan, clips, real, weights)
        write_results(plan, result, {**clips, **({RECORDINGS: real} if real else {})})
    finally:
        os.close(lock)
    return result


def complete_weights(given: Mapping[str, float]) -> dict[str, float]:
    """The weights of all measures. Raises `UserError` for another measure or value, and if none counts."""
    for name, value in given.items():
        if name not in MEASURES or not 0 <= value < math.inf:
            raise UserError(f"--weights {name}={value:g}: {EXPECTED_WEIGHT.format(', '.join(MEASURES))}")
    weights = {**DEFAULT_WEIGHTS, **given}
    if not any(weights.values()):
        raise UserError("--weights: all are 0; at least one measure must count")
    return weights


def make_plan(recipe: SpeechRecipe, run: Path, options: SelectionOptions) -> SelectionPlan:
    """Check the options, the checkpoints with their bases, and every row. Raises `UserError`."""
    check_numbers(options)
    found, notes = selection_record.find_candidates(run)
    if options.checkpoints != "all":
        wanted = {checkpoint.step_of(path) for path in systems.list_checkpoints(run, options.checkpoints)}
        found = [path for path in found if checkpoint.step_of(path) in wanted]
    listed = candidates.list_candidates(found, options.strengths)
    check_bases(found, recipe)

    def check(item: Item) -> None:
        for path in found:
            systems.check_item(recipe, VoiceCandidate(path, 1.0).system, item)

    rows = evaluation_items.read_items(options.data, options.speaker, None, check)
    items = rows if options.text_file is None else read_text_file(options.text_file, rows, options.speaker, check)
    texts = choose_texts(items, options.texts)
    if len(texts.items) < LEAST_TEXTS:
        source = options.text_file or options.data
        raise UserError(f"{source}: {len(texts.items)} different texts are too few to choose by; give {LEAST_TEXTS}")
    check_recordings(texts.items, rows, options.data)
    intelligibility.check_whisper(options.asr)
    scoring.check_clips(rows)
    encoder, speaker_model, more = choose_encoder(recipe, listed[-1].system, options.speaker_model)
    notes = [*notes, *evaluation_items.describe_unspoken(texts.items), *texts.notes, *more]
    return SelectionPlan(recipe, run, listed, texts, rows, encoder, notes, speaker_model, options)


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
        spoken = clean_text(request.text)
        if not normalize(spoken.text):
            raise UserError(f"{line.place}: {request.text!r} has no word in it; correct or remove the line")
        name = manifest.parse_speaker(request.speaker)
        languages = {item.language for item in rows if item.speaker == name}
        language = request.language or (next(iter(languages)) if len(languages) == 1 else manifest.AUTO)
        language = manifest.parse_language(language)
        items.append(Item(f"text-{line.number:04d}", spoken.text, name, language, unspoken=spoken.describe_removed()))
        try:
            check(items[-1])
        except UserError as error:
            raise UserError(f"{line.place}: {error}") from None
    return items


def check_numbers(options: SelectionOptions) -> None:
    """Raises `UserError` for a number that is out of range."""
    if not options.strengths:
        raise UserError("--strengths: give at least one, such as 1")
    for strength in options.strengths:
        try:
            export.check_strength(strength)
        except UserError as error:
            raise UserError(str(error).replace("--strength", "--strengths")) from None
    for name, least in (("texts", LEAST_TEXTS), ("batch", 1)):
        if getattr(options, name) < least:
            raise UserError(f"--{name} {getattr(options, name)}: must be at least {least}")
    if not 0 < options.max_seconds < math.inf:
        raise UserError(f"--max-seconds {options.max_seconds:g}: must be more than 0 and finite")


def check_bases(found: Sequence[Path], recipe: SpeechRecipe) -> None:
    """Raises `UserError` if the base of a checkpoint is missing or was changed: every strength is computed from it."""
    known = list[object]()
    for path in found:
        state = checkpoint.read_state(path)
        if state["base"] not in known:  # its digest takes as long as reading it
            export.find_base(state, recipe.base_folders, remedy="move it back, since every strength is computed from it")
            known.append(state["base"])


def check_recordings(items: Sequence[Item], rows: Sequence[Item], data: Path) -> None:
    """Raises `UserError` for a speaker without a real clip of another text, to which the speech of a text could be similar."""
    clips: dict[str, set[Path | None]] = {}
    for row in rows:
        clips.setdefault(row.speaker, {None}).update((row.recording, row.reference))
    if missing := sorted({item.speaker for item in items if not clips.get(item.speaker, {None}) - {None, item.recording}}):
        raise UserError(
            f"{data} has no clip of {', '.join(missing)}, or none besides the recording of a text that is spoken, so the similarity cannot "
            "be measured; add rows with audio"
        )


def choose_encoder(recipe: SpeechRecipe, system: System, speaker_model: str | None) -> tuple[SpeakerEncoder | None, str | None, list[str]]:
    """The encoder of the base, or None; the name of an independent one, or None; and notes. Raises `UserError` if there is
    neither."""
    installed = resemblyzer_encoder.find_weights() is not None
    if speaker_model is None and installed:
        speaker_model = resemblyzer_encoder.NAME
    if speaker_model is not None:
        if speaker_model == resemblyzer_encoder.NAME and not installed:
            raise UserError(f"--speaker-model {speaker_model}: it is not installed; run: {resemblyzer_encoder.INSTALL}")
        return None, speaker_model, []
    encoder, problems = systems.find_encoder(recipe, [system])
    if encoder is None:
        raise UserError(f"{problems[0]}; give --speaker-model MODEL, or run: {resemblyzer_encoder.INSTALL}")
    note = (
        "The similarity is that of the base model's own encoder, which may overestimate it, because the model was trained with its "
        f"vectors; `{resemblyzer_encoder.INSTALL}` adds an independent one."
    )
    return encoder, None, [note]


def measure_all(plan: SelectionPlan) -> tuple[dict[str, list[ComparedClip]], list[ComparedClip]]:
    """The clips of every candidate, and those of the recordings of the same texts. Measures that an earlier selection left are reused."""
    options, encoders = plan.options, scoring.load_encoders(plan.encoder, plan.speaker_model)
    for leftover in plan.folder.glob("export-*"):
        files.discard(leftover)  # of a selection that was killed
    # Before hours of generation, so that a problem of these models shows first.
    models = scoring.load_scoring_models([*plan.recordings, *plan.texts.items], encoders, options.asr)
    takes = [Take(item, item.recording, True) for item in plan.texts.items if item.recording is not None]
    sampling = SpeechSampling(greedy=options.greedy, seed=options.seed, max_seconds=options.max_seconds)
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


def describe_settings(plan: SelectionPlan) -> dict[str, JsonValue]:
    """Return what affects the measures, besides weights and texts: files and models by content."""
    options = plan.options
    return {
        "asr": intelligibility.digest_whisper(options.asr),
        "speaker_model": plan.speaker_model and speaker_similarity.digest_independent_encoder(plan.speaker_model),
        "greedy": options.greedy,
        "seed": options.seed,
        "max_seconds": options.max_seconds,
        **intelligibility.describe_retry(options.asr),
        "data": files.digest(options.data),  # the similarity is that to the clips of all rows
    }


def speak_candidate(plan: SelectionPlan, one: VoiceCandidate, sampling: SpeechSampling) -> list[Take]:
    """Export a candidate, speak all texts, and remove the export. One candidate is in memory at a time."""
    out = plan.folder / CANDIDATES / one.slug
    if out.exists():
        files.discard(out)  # of other texts or settings, or incomplete
    with systems.open_export(plan.recipe, one.system, files.make_folder(plan.folder)) as folder:
        return [*systems.speak(plan.recipe, one.system, folder, plan.texts.items, sampling, plan.options.batch, out)]


def make_result(
    plan: SelectionPlan, clips: Mapping[str, Sequence[ComparedClip]], real: Sequence[ComparedClip], weights: Mapping[str, float]
) -> SelectionResult:
    """Compare the candidates. A pace is measured if every speaker has recordings."""
    options, notes = (
        plan.options,
        [*plan.notes, f"The WER is by the transcripts of {intelligibility.describe_recognizer(plan.options.asr)}."],
    )
    expected = candidate_measures.expect_seconds(plan.texts.items, plan.recordings)
    if len(expected) < len(plan.texts.items):
        notes.append(f"Pace was measured on {len(expected)} of {len(plan.texts.items)} texts: the others' speakers have no recordings.")
    if len(plan.texts.items) < (least := least_texts(count_pairs(len(clips)))):
        notes.append(
            f"{len(plan.texts.items)} texts cannot show which of {len(clips)} candidates is worse, so the lowest cost is chosen; "
            f"give {least} or more."
        )
    if not expected:
        weights = {**weights, PACE: 0.0}
    decision = decide(
        {name: candidate_measures.tabulate(own, expected) for name, own in clips.items()}, weights, [one.name for one in plan.candidates]
    )
    scored = [clip.scored for own in clips.values() for clip in own]
    if failed := sum(clip.transcript is None for clip in scored):
        notes.append(f"The transcription failed for {failed} clips, which are excluded from the WER.")
    notes += [f"All candidates: {note}" for note in scoring.describe_retries(scored)]
    used = {**vars(options), "speaker_model": plan.speaker_model, "run": plan.run, "weights": dict(weights)}
    settings = {key: str(value) if isinstance(value, Path) else value for key, value in used.items()}
    recorded = candidate_measures.tabulate(real, expected).sum(axis=0) if real else None
    return SelectionResult({one.name: one for one in plan.candidates}, decision, recorded, notes, settings)


def write_results(plan: SelectionPlan, result: SelectionResult, clips: Mapping[str, Sequence[ComparedClip]]) -> None:
    """Write plot, page and selection.json, which holds the choice."""
    reason, chosen = result_rendering.explain_choice(result.decision), result.chosen
    files.write_bytes(plan.folder / PICTURE, result_rendering.draw_plot(result))
    files.write_text(plan.folder / PAGE, selection_page.render_page(result, clips, plan.texts.kinds, plan.run.name))
    texts = [{"key": item.key, "kind": plan.texts.kinds[item.key], "speaker": item.speaker, "text": item.text} for item in plan.texts.items]
    record = {**result_rendering.build_record(result), "texts": texts}
    selection_record.write_selection(plan.run, chosen.checkpoint, chosen.strength, reason, record)
