"""`eval-voice --protocol seed-tts-eval`: speaks the protocol's prompts and measures them as papers do.

overtone eval-voice --model BASE --protocol seed-tts-eval --data en/meta.lst --protocol-similarity wavlm_large_finetune.pth
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import soundfile
from pydantic import JsonValue

from overtone.data_prep import manifest
from overtone.data_prep.clips import dnsmos
from overtone.data_prep.clips.dnsmos import SoundScorer
from overtone.data_prep.speakers import resemblyzer_encoder
from overtone.finetune.data.row_problems import RowProblem, format_row_problems
from overtone.finetune.errors import UserError
from overtone.finetune.storage import files
from overtone.finetune.storage.model_resolver import resolve_model
from overtone.finetune.storage.strict_json import first_line
from overtone.finetune.storage.text_lines import read_lines
from overtone.finetune.terminal import print_line
from overtone.recipes.ray_generation import open_engine, read_engine
from overtone.recipes.speech.evaluation import evaluation_items, intelligibility, scoring, systems
from overtone.recipes.speech.evaluation.evaluation_folder import CLIPS, SEED_TTS_EVAL, check_out, choose_out
from overtone.recipes.speech.evaluation.evaluation_items import Item
from overtone.recipes.speech.evaluation.metric_aggregation import ScoredClip
from overtone.recipes.speech.evaluation.seed_tts_eval import average_similarity, report, whisper_recognizer
from overtone.recipes.speech.evaluation.seed_tts_eval.prompts import Prompt, read_prompts
from overtone.recipes.speech.evaluation.seed_tts_eval.report import ProtocolReport, ProtocolScores
from overtone.recipes.speech.evaluation.seed_tts_eval.whisper_recognizer import RecognizerFolder
from overtone.recipes.speech.evaluation.seed_tts_eval.word_error_rate import UtteranceErrors, count_utterance_errors
from overtone.recipes.speech.evaluation.systems import System, Take
from overtone.recipes.speech.evaluation.voice_evaluation import check_numbers
from overtone.recipes.speech.interface import SpeechRecipe, SpeechSampling

if TYPE_CHECKING:
    from overtone.data_prep.parallel.ray_pool import RayWorkers
    from overtone.recipes.speech.evaluation.seed_tts_eval.wavlm_ecapa import SimilarityModel

NONE = "none"
"""Value of --protocol-asr for no recognizer."""
SCORES = "scores"
"""Folder of the result files in the form of the public scripts."""
LANGUAGES = {"en": "english", "zh": "chinese"}
WITHOUT_MEANING = ("checkpoints", "codec", "seen", "reference", "card")
"""Options of `eval-voice` for its own evaluation alone; checkpoints are named by --model."""
CHINESE = (
    "--protocol-language zh: the protocol transcribes Chinese by paraformer-zh of the package funasr, which runs code that comes with its "
    "models and is not run here. Speak with --protocol-asr none; transcribe the clips by funasr, and convert its output by "
    "zhconv.convert(text, 'zh-cn'); then give it (lines name|transcript) to --protocol-transcripts"
)


@dataclass(frozen=True)
class ProtocolPlan:
    """An evaluation by the protocol that was checked and can start."""

    recipe: SpeechRecipe
    prompts: list[Prompt]
    """Prompts to speak."""
    total: int
    """Number of utterances in the prompts file."""
    systems: list[System]
    asr: RecognizerFolder | None
    similarity: SimilarityModel | None
    dnsmos: SoundScorer | None
    args: argparse.Namespace


def evaluate_by_protocol(recipe: SpeechRecipe, model: Path, args: argparse.Namespace) -> int:
    """Body of the verb. Raises `UserError` for what cannot be evaluated, before any model is loaded."""
    args.out = choose_out(model, args.out)
    plan = make_plan(recipe, model, args)
    found = rescore_plan(plan) if args.protocol_transcripts is not None else run_plan(plan)
    write_documents(found, args.out)
    return 0


def make_plan(recipe: SpeechRecipe, model: Path, args: argparse.Namespace) -> ProtocolPlan:
    """Check the arguments, the models and every line of the prompts file. Raises `UserError`."""
    unused = next((name for name in WITHOUT_MEANING if getattr(args, name)), None)
    if unused is not None:
        raise UserError(f"--{unused} has no effect with --protocol {SEED_TTS_EVAL}; remove it")
    check_numbers(args.limit, args.batch, args.max_seconds, args.reference)
    check_out(args.out, with_clips=args.protocol_transcripts is not None)
    prompts = read_prompts(args.data, args.protocol_language)
    chosen: list[Prompt] = evaluation_items.pick_evenly(prompts, len(prompts) if args.limit is None else args.limit)
    speaking = find_speaking_systems(recipe, model, args)
    check_items(recipe, speaking, chosen, args)
    scoring.check_clips([make_item(prompt, args) for prompt in chosen])
    return ProtocolPlan(recipe, chosen, len(prompts), speaking, find_asr(args), find_similarity(args), find_dnsmos(args), args)


def find_speaking_systems(recipe: SpeechRecipe, model: Path, args: argparse.Namespace) -> list[System]:
    """The model, which clones each prompt if it can, and that of --base; if it cannot, that one speaks by name, too. Raises `UserError`."""
    found = [replace(one, way="cloned") if can_clone(recipe, one) else one for one in systems.find_systems(recipe, model, None)]
    named = any(one.way == "named" for one in found)
    if named and args.speaker is None:
        raise UserError(
            f"--model {model}: speaks by the names of its speakers, and cannot clone the prompts; give --speaker NAME, with prompts of "
            "that speaker. A model that clones is made by `overtone export --format base`"
        )
    if args.base:
        speakers = [manifest.parse_speaker(args.speaker)] if named else []
        base, note = systems.find_base(recipe, resolve_model("--base", args.base), speakers, found)
        print_line(note)
        found = systems.number_repeated([*found, base])
    if len(found) > 1 and args.protocol_transcripts is not None:
        raise UserError("--protocol-transcripts: transcripts are of one model; remove --base")
    return found


def can_clone(recipe: SpeechRecipe, system: System) -> bool:
    """Return whether a system clones the prompts. A checkpoint speaks by name, as its export does by default."""
    return system.step is None and recipe.inspect(system.folder).can_clone


def check_items(recipe: SpeechRecipe, speaking: Sequence[System], prompts: Sequence[Prompt], args: argparse.Namespace) -> None:
    """Raises `UserError`, with file and line, for utterances that a system cannot speak."""
    problems = list[RowProblem]()
    for prompt in prompts:
        for system in speaking:
            item = make_item(prompt, args)
            try:
                if system.way == "named" or item.reference is not None:
                    systems.check_item(recipe, system, item)
            except UserError as error:
                problems.append(RowProblem(prompt.line, str(error)))
    if problems:
        raise UserError(format_row_problems(args.data, problems, len(prompts)))


def make_item(prompt: Prompt, args: argparse.Namespace) -> Item:
    """An utterance as a row of `eval-voice`. Each prompt counts as a speaker of its own, unless --speaker names the one of all."""
    reference = prompt.prompt_wav if prompt.prompt_wav.is_file() else None
    speaker = manifest.parse_speaker(args.speaker or prompt.name)
    text = prompt.prompt_text or None
    return Item(prompt.name, prompt.text, speaker, LANGUAGES[args.protocol_language], None, reference, text if reference else None)


def find_asr(args: argparse.Namespace) -> RecognizerFolder | None:
    """The recognizer; None if there is none, or if another one's transcripts are given. Raises `UserError`, for Chinese with what is
    needed."""
    if args.asr is not None:
        intelligibility.check_whisper(args.asr)
    if args.protocol_transcripts is not None or args.protocol_asr == NONE:
        return None
    if args.protocol_language == "zh":
        raise UserError(CHINESE)
    return whisper_recognizer.find_recognizer(args.protocol_asr)


def find_similarity(args: argparse.Namespace) -> SimilarityModel | None:
    if args.protocol_similarity is None:
        return None
    from overtone.recipes.speech.evaluation.seed_tts_eval import wavlm_ecapa

    return wavlm_ecapa.find_similarity_model(args.protocol_similarity)


def find_dnsmos(args: argparse.Namespace) -> SoundScorer | None:
    """Raises `UserError`, with the command that installs it, if it is requested and not installed."""
    found = dnsmos.find_scorer() if args.dnsmos else None
    if args.dnsmos and found is None:
        raise UserError(f"--dnsmos: the networks are not installed; run: {dnsmos.INSTALL}")
    return found


def run_plan(plan: ProtocolPlan) -> ProtocolReport:
    """Speak all prompts with all systems and score the clips."""
    args, items = plan.args, [make_item(prompt, plan.args) for prompt in plan.prompts]
    speaker_model = args.speaker_model
    if speaker_model is None and resemblyzer_encoder.find_weights() is not None:
        speaker_model = resemblyzer_encoder.NAME
    encoders = scoring.load_encoders(systems.find_encoder(plan.recipe, plan.systems)[0], speaker_model)
    models = scoring.load_scoring_models(items, encoders, args.asr)
    score = load_scorer(plan)  # first, so that a problem shows before hours of generation
    for leftover in [args.out / CLIPS, *args.out.glob("export-*")]:
        if leftover.exists():
            files.discard(leftover)
    scores: dict[str, ProtocolScores] = {}
    with open_engine(
        read_engine(args), args.out, [system.folder for system in plan.systems] + [item.reference for item in items]
    ) as remote:
        takes = {system.name: speak_all(system, plan, items, remote) for system in plan.systems}
    for system in plan.systems:
        scores[system.name] = score(system, [scoring.score(take, models, None) for take in takes[system.name]])
    return make_report(plan, scores, [encoder.name for encoder in encoders])


def speak_all(system: System, plan: ProtocolPlan, items: Sequence[Item], remote: RayWorkers | None = None) -> list[Take]:
    """Speak all items that the system can speak, as wav files with the names of the protocol; prints the progress after each batch."""
    args, takes = plan.args, list[Take]()
    spoken = [item for item in items if system.way == "named" or item.reference is not None]
    sampling = SpeechSampling(greedy=args.greedy, seed=args.seed, max_seconds=args.max_seconds)
    with systems.open_export(plan.recipe, system, args.out) as folder:
        out = clips_folder(plan, system)
        for take in systems.speak(plan.recipe, system, folder, spoken, sampling, args.batch, out, "wav", remote):
            takes.append(take)
            if len(takes) % args.batch == 0 or len(takes) == len(spoken):
                print_line(f"{system.name}: {len(takes)} of {len(spoken)} utterances spoken")
    return takes


def clips_folder(plan: ProtocolPlan, system: System) -> Path:
    """The folder with `name.wav` of each utterance, which the public scripts take."""
    return Path(plan.args.out) / CLIPS / systems.slug(system.name)


Scorer = Callable[[System, Sequence[ScoredClip]], ProtocolScores]


def load_scorer(plan: ProtocolPlan) -> Scorer:
    """Loads the models of the protocol; the function scores the clips of a system."""
    asr = None if plan.asr is None else plan.asr.load()
    compared = None if plan.similarity is None else plan.similarity.load()
    rated = None if plan.dnsmos is None else plan.dnsmos.load()

    def score(system: System, own: Sequence[ScoredClip]) -> ProtocolScores:
        folder = clips_folder(plan, system)
        compare = None if compared is None else compared.compare
        scores = score_clips(plan.prompts, folder, plan.args.protocol_language, None if asr is None else asr.transcribe, compare)
        ratings = [rated.rate(read_at_16_khz(path)).model_dump() for path in sorted(folder.glob("*.wav"))] if rated is not None else []
        means = {name: round(float(np.mean([one[name] for one in ratings])), 3) for name in (ratings[0] if ratings else {})}
        return replace(scores, own=own, dnsmos=means)

    return score


def read_at_16_khz(path: Path) -> Any:
    """The samples [n] of a clip, float32."""
    return whisper_recognizer.read_resampled(path).astype(np.float32)


def score_clips(
    prompts: Sequence[Prompt],
    folder: Path,
    language: str,
    transcribe: Callable[[Path], str] | None,
    compare: Callable[[Path, Path], float] | None,
) -> ProtocolScores:
    """Score `folder/name.wav` of each utterance. A clip without sound counts as one without a word, and has no similarity."""
    errors, similarities, missing = dict[str, UtteranceErrors](), dict[str, float](), dict[str, str]()
    for prompt in prompts:
        clip = folder / f"{prompt.name}.wav"
        if not clip.is_file():
            missing[prompt.name] = f"its speech {clip}" if prompt.prompt_wav.is_file() else f"its prompt {prompt.prompt_wav}"
            continue
        silent = soundfile.info(clip).frames == 0
        if transcribe is not None:
            transcript = "" if silent else transcribe(clip)
            errors[prompt.name] = count_utterance_errors(prompt.text, transcript, "zh" if language == "zh" else "en")
        if compare is None:
            continue
        if silent or not prompt.prompt_wav.is_file():
            missing[prompt.name] = "similarity: the speech is empty" if silent else f"similarity: its prompt {prompt.prompt_wav}"
            continue
        try:
            similarities[prompt.name] = compare(clip, prompt.prompt_wav)
        except RuntimeError as error:  # shorter than the network's convolutions
            missing[prompt.name] = f"similarity: {first_line(error)}"
    return ProtocolScores(errors, similarities, missing)


def rescore_plan(plan: ProtocolPlan) -> ProtocolReport:
    """Score the clips of an earlier run with the transcripts of another recognizer. Raises `UserError` if there are none."""
    args, system = plan.args, plan.systems[0]
    folder = clips_folder(plan, system)
    if not any(folder.glob("*.wav")):
        raise UserError(f"--protocol-transcripts: {folder} has no clips; speak first, with --protocol-asr none and the same --out")
    transcripts = read_transcripts(args.protocol_transcripts)
    known = [prompt for prompt in plan.prompts if prompt.name in transcripts]
    compare = None if plan.similarity is None else plan.similarity.load().compare
    scores = score_clips(known, folder, args.protocol_language, lambda path: transcripts[path.stem], compare)
    without = {prompt.name: f"its transcript in {args.protocol_transcripts}" for prompt in plan.prompts if prompt.name not in transcripts}
    return make_report(plan, {system.name: replace(scores, missing={**without, **scores.missing})}, [])


def read_transcripts(path: Path) -> dict[str, str]:
    """Name → transcript. Raises `UserError` with the lines that are not `name|transcript`."""
    try:
        lines = read_lines(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--protocol-transcripts {path}: cannot be read ({error}); give a text file of lines name|transcript") from None
    problems = [RowProblem(number, "not name|transcript") for number, line in enumerate(lines, start=1) if line.strip() and "|" not in line]
    if problems:
        raise UserError(format_row_problems(path, problems, len(lines)))
    return {name: text for name, mark, text in (line.partition("|") for line in lines) if mark}


def make_report(plan: ProtocolPlan, scores: Mapping[str, ProtocolScores], encoders: Sequence[str]) -> ProtocolReport:
    return ProtocolReport(plan.total, scores, encoders, describe_differences(plan, scores), describe_settings(plan))


def describe_differences(plan: ProtocolPlan, scores: Mapping[str, ProtocolScores]) -> list[str]:
    """A sentence for each thing in which this evaluation is not the protocol's."""
    args, found = plan.args, list[str]()
    if len(plan.prompts) < plan.total:
        found.append(f"Only {len(plan.prompts)} of {plan.total} utterances were spoken (--limit).")
    if args.protocol_transcripts is not None:
        found.append(f"The transcripts are from {args.protocol_transcripts.name}; which recognizer wrote them is not known here.")
    elif plan.asr is None:
        found.append("WER was not measured (--protocol-asr none).")
    elif plan.asr.name != whisper_recognizer.PUBLISHED or plan.asr.revision is None:
        found.append(f"The recognizer is {plan.asr.name}, not {whisper_recognizer.PUBLISHED} from the hub.")
    if plan.similarity is None:
        found.append("SIM was not measured: give wavlm_large_finetune.pth to --protocol-similarity.")
    found += [f"{system.name} speaks by name, and does not clone the prompts." for system in plan.systems if system.way == "named"]
    found += [f"{name}: {len(one.missing)} utterances are missing." for name, one in scores.items() if one.missing]
    return found


def describe_settings(plan: ProtocolPlan) -> dict[str, JsonValue]:
    """All that the figures depend on."""
    args = plan.args
    asr = None if plan.asr is None else {"name": plan.asr.name, "revision": plan.asr.revision, "sha256": plan.asr.digests}
    model = None if plan.similarity is None else {"file": plan.similarity.path.name, "sha256": plan.similarity.digest}
    return {
        "prompts": {"file": str(args.data), "sha256": files.digest(args.data), "language": args.protocol_language},
        "models": {system.name: {"folder": str(system.folder), "speaks": system.way} for system in plan.systems},
        "asr": asr if args.protocol_transcripts is None else {"transcripts": str(args.protocol_transcripts)},
        "similarity_model": model,
        "sampling": "greedy" if args.greedy else "the model's own settings",
        "seed": args.seed,
        "max_seconds": args.max_seconds,
        "versions": {name: version(name) for name in ("transformers", "torch", "jiwer", "scipy")},
    }


def write_documents(found: ProtocolReport, out: Path) -> None:
    """Write Markdown, the public scripts' result files and, last, JSON, which marks the evaluation as complete; print the figures."""
    files.write_text(out / f"{SEED_TTS_EVAL}.md", report.render_markdown(found))
    for name, scores in found.scores.items():
        folder = files.make_folder(out / SCORES)
        lines = [one.format_line(f"{utterance}.wav") for utterance, one in scores.errors.items()]
        files.write_text(folder / f"{systems.slug(name)}.wer", "".join(f"{line}\n" for line in [*lines, f"WER: {scores.wer}%"]))
        pairs = [average_similarity.format_line(f"{utterance}.wav", utterance, value) for utterance, value in scores.similarities.items()]
        files.write_text(folder / f"{systems.slug(name)}.sim", "".join(f"{line}\n" for line in pairs))
        average = "not measured" if scores.similarity is None else str(scores.similarity.mean)
        rate = "not measured" if scores.wer is None else f"{scores.wer} %"
        print_line(f"{name}: WER {rate}, SIM {average}, {len(scores.missing)} of {found.utterances} utterances missing")
    for line in found.differences:
        print_line(f"differs from the protocol: {line}")
    files.write_json(out / f"{SEED_TTS_EVAL}.json", report.build_record(found))
    print_line(f"{out / SEED_TTS_EVAL}.md: the figures, and all that they depend on")
