"""The dataset of `overtone pairs`: a voice speaks each text several times, a judge measures the clips, and clear pairs become rows.

FOLDER/clips/       the clips, to listen to
FOLDER/clips.jsonl  each clip with codes and measures; what is in it is not spoken again
FOLDER/train.jsonl  the pairs, for `--recipe voice_dpo`
FOLDER/val.jsonl    pairs of other texts, to validate on
FOLDER/trials.jsonl two clips of each text that people can compare (`serve --blind FOLDER`), and decide themselves (`--decisions`)
FOLDER/summary.json how many pairs were kept, and why texts have none
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from overtone.data_prep.clips.duplicates import normalise_text
from overtone.finetune.errors import UserError
from overtone.finetune.modeling import loading
from overtone.finetune.storage import files, input_files
from overtone.finetune.storage.json_schema import parse_model
from overtone.finetune.storage.strict_json import loads_object
from overtone.finetune.terminal import print_line
from overtone.recipes.speech.evaluation import evaluation_items, intelligibility, scoring, speaker_similarity, systems
from overtone.recipes.speech.evaluation.evaluation_items import Item
from overtone.recipes.speech.evaluation.systems import System
from overtone.recipes.speech.frame_synthesizer import FrameVoice
from overtone.recipes.speech.interface import SpeechRecipe, SpeechRequest, SpeechSampling, SpokenRequest, VoiceFolder
from overtone.recipes.speech.passages import split_request
from overtone.recipes.speech.selection import voice_selection
from overtone.recipes.speech.voices_json_schema import VOICES, read_voices

from . import clip_decisions
from .clip_decisions import TRIALS, ClipAnswer, ClipTrial, Decisions
from .pair_selection import MARGIN, MAX_WER, ClipRecord, choose_pair, make_row, store_measures
from .reward_weights import RewardWeights
from .speech_judge import SpeechJudge, compute_reward, load_judge

CLIPS, RECORDS, ROWS, VAL, SUMMARY = "clips", "clips.jsonl", "train.jsonl", "val.jsonl", "summary.json"
WORKSPACE = "export"
"""Beginning of the names of temporary folders in the dataset's folder, in which a checkpoint is exported."""


@dataclass(frozen=True)
class PairOptions:
    """Options of the dataset; the fields are the flags of `overtone pairs`, whose help describes them."""

    texts: Path
    data: Path
    asr: str
    out: Path
    sampling: SpeechSampling
    """All settings but the seed of each clip, which is derived from this seed."""
    speaker: str | None = None
    speaker_model: str | None = None
    samples: int = 4
    margin: float = MARGIN
    max_wer: float = MAX_WER
    weights: RewardWeights = field(default_factory=RewardWeights)
    batch: int = 8
    val_share: float = 0.05
    decisions: Sequence[Path] = ()


@dataclass(frozen=True)
class ClipPlan:
    """A clip that is to be spoken."""

    item: Item
    spoken: SpokenRequest
    key: str
    name: str
    """File name without its ending."""


def make_pairs(recipe: SpeechRecipe, model: Path, options: PairOptions) -> dict[str, JsonValue]:
    """Speak, judge and pair; returns the summary, which is also written. Raises `UserError` for what cannot be spoken or judged, before any
    model is loaded, and if another process works in the folder."""
    check_numbers(options)
    answers, torn = clip_decisions.read_answers(options.decisions)
    (system,) = systems.find_systems(recipe, model, None)
    rows = evaluation_items.read_items(options.data, options.speaker, None, lambda _: None)
    items = read_texts(options, rows, recipe, system)
    voice_selection.check_recordings(items, rows, options.data)
    intelligibility.check_whisper(options.asr)
    scoring.check_clips(rows)
    notes = evaluation_items.describe_unspoken(items)
    for note in notes:
        print_line(note)
    encoder, speaker_model, more = voice_selection.choose_encoder(recipe, system, options.speaker_model)
    notes += more
    check_folder(options.out)
    lock = files.lock_folder(options.out)
    try:
        files.write_if_absent(options.out / RECORDS, b"")  # the sign that the folder is of this verb, also if it is killed soon
        files.remove_unfinished(options.out, WORKSPACE)  # of a process that was killed
        settings = describe_settings(recipe, system, rows, options, speaker_model)
        (similarity,) = scoring.load_encoders(encoder, speaker_model)
        judge = load_judge(rows, {item.language for item in items}, similarity, options.asr)
        workspace = files.fresh_folder(options.out, WORKSPACE)
        with systems.open_export(recipe, system, workspace) as folder:
            exported = recipe.inspect(folder)
            different = drop_repeated(exported, items)
            if repeated := len(items) - len(different):
                notes.append(f"{repeated} of {len(items)} lines repeat an earlier one and were left out.")
                print_line(notes[-1])
            plans = plan_clips(exported, different, options, settings)
            records = read_records(options.out)
            check_answers(answers, plans, records, options.out)
            speak_missing(exported, plans, records, judge, options, system.name)
        notes.append(intelligibility.name_judge(options.asr))
        return write_rows(different, plans, records, options, notes, answers, torn)
    finally:
        files.remove_unfinished(options.out, WORKSPACE)
        os.close(lock)


def check_numbers(options: PairOptions) -> None:
    """Raises `UserError` for a number that is out of range."""
    for name, value, least in (("samples", options.samples, 2), ("batch", options.batch, 1)):
        if value < least:
            raise UserError(f"--{name} {value}: must be at least {least}")
    if not 0 < options.margin < math.inf:
        raise UserError(f"--margin {options.margin:g}: must be more than 0 and finite, since equal clips teach nothing")
    if not 0 <= options.max_wer < math.inf:
        raise UserError(f"--max-wer {options.max_wer:g}: must be 0 or more, and finite; 0.2 is one wrong word of five")
    if not 0 <= options.val_share < 1:
        raise UserError(f"--val-share {options.val_share:g}: expected a share from 0 up to but not including 1")
    if options.sampling.greedy:
        raise UserError("--greedy: all clips of a text would be the same; remove it")


def check_folder(out: Path) -> None:
    """Raises `UserError` for a folder with other content, whose train.jsonl must not be replaced."""
    if out.exists() and not out.is_dir():
        raise UserError(f"--out {out} is a file; give a folder")
    if out.exists() and not (out / RECORDS).is_file():
        own = {out / files.OWNER, *files.list_unfinished(out, RECORDS)}
        if others := sorted({*out.iterdir()} - own):
            raise UserError(f"--out {out} has {others[0].name}, and no {RECORDS} of this verb; give a new folder")


def read_texts(options: PairOptions, rows: Sequence[Item], recipe: SpeechRecipe, system: System) -> list[Item]:
    """The texts to speak. Raises `UserError` with the line for one that the model cannot speak at once."""

    trained = list_trained(system)

    def check(item: Item) -> None:
        systems.check_item(recipe, system, item)
        if trained is not None and item.speaker not in trained:
            raise UserError(f"speaker {item.speaker!r}: voice_dpo cannot train this voice; it can train {', '.join(trained)}")
        if (passages := len(split_request(system.request(item), options.sampling.max_seconds))) > 1:
            raise UserError(f"it would be spoken in {passages} passages, and a pair has one; split the line, or raise --max-seconds")

    try:
        return voice_selection.read_text_file(options.texts, rows, options.speaker, check)
    except UserError as error:
        raise UserError(str(error).replace("--text-file", "--texts")) from None


def list_trained(system: System) -> list[str] | None:
    """The voices that voice_dpo can train: those that an export lists; None for a checkpoint, which speaks with no others. Raises
    `UserError` for a model without any."""
    if system.step is not None:
        return None
    speakers = read_voices(system.folder).get("speakers")
    names = [one["name"] for one in speakers if isinstance(one, dict) and "name" in one] if isinstance(speakers, list) else []
    if not names:
        raise UserError(
            f"{system.folder}: it has no trained voices ({VOICES}), and voice_dpo trains no others; give a voice of voice_clone"
        )
    return names


def describe_settings(
    recipe: SpeechRecipe, system: System, rows: Sequence[Item], options: PairOptions, speaker_model: str | None
) -> dict[str, JsonValue]:
    """Return what determines all clips and their measures, besides text and sample. Files count by content: a copy is the same model."""
    if system.step is None:
        model = json.dumps(loading.file_digests(system.folder, recipe.base_folders), sort_keys=True)
    else:
        model = files.digest(system.folder / "manifest.json")
    clips = {path for row in rows for path in (row.recording, row.reference) if path is not None}
    return {
        "model": model,
        "strength": system.strength,
        "sampling": asdict(options.sampling),
        "data": files.digest(options.data),  # the similarity is that to the clips of all rows
        "recordings": [files.digest(path) for path in sorted(clips)],
        "asr": intelligibility.digest_whisper(options.asr),
        "speaker_model": speaker_model and speaker_similarity.digest_independent_encoder(speaker_model),
        **intelligibility.describe_retry(options.asr),
    }


def complete_item(exported: VoiceFolder, item: Item) -> SpeechRequest:
    """The request for an item as it is spoken."""
    return exported.complete(System("", exported.folder, "named").request(item))


def drop_repeated(exported: VoiceFolder, items: Sequence[Item]) -> list[Item]:
    """The items without those whose request equals an earlier one: their clips, and so their pairs, would be the same."""
    found = dict[SpeechRequest, Item]()
    for item in items:
        found.setdefault(complete_item(exported, item), item)
    return [*found.values()]


def plan_clips(exported: VoiceFolder, items: Sequence[Item], options: PairOptions, settings: Mapping[str, JsonValue]) -> list[ClipPlan]:
    """Each sample of each text, with a seed that `run.seed`, the text and the number of the sample determine."""
    plans = []
    for item in items:
        request = complete_item(exported, item)
        for sample in range(options.samples):
            parts = json.dumps([options.sampling.seed, request.text, request.speaker, sample]).encode()
            seed = int.from_bytes(hashlib.sha256(parts).digest()[:4]) // 2
            facts = json.dumps([dict(settings), request.text, request.speaker, request.language, seed], sort_keys=True)
            spoken = SpokenRequest(request, type(options.sampling)(**{**asdict(options.sampling), "seed": seed}))
            key = hashlib.sha256(facts.encode()).hexdigest()[:16]
            plans.append(ClipPlan(item, spoken, key, f"{item.key}-{sample + 1:02d}"))
    return plans


def read_records(out: Path) -> dict[str, ClipRecord]:
    """Key → the clips of earlier runs whose audio exists. A line that a killed process left incomplete is ignored: its clip is spoken
    again."""
    found = dict[str, ClipRecord]()
    with input_files.open_file(out / RECORDS) as file:
        for line in file:
            try:
                record = parse_model(ClipRecord, loads_object(line))
                if files.resolve_under(out, record.audio).is_file():
                    found[record.key] = record
            except (OSError, UserError, ValueError):  # of others, perhaps with a name too long for a file
                continue
    return found


def group_records(plans: Sequence[ClipPlan], records: Mapping[str, ClipRecord]) -> dict[str, list[ClipRecord]]:
    """Key of an item → those of its planned clips that have a record."""
    groups = dict[str, list[ClipRecord]]()
    for plan in plans:
        group = groups.setdefault(plan.item.key, [])
        if plan.key in records:
            group.append(records[plan.key])
    return groups


def check_answers(answers: Sequence[ClipAnswer], plans: Sequence[ClipPlan], records: Mapping[str, ClipRecord], out: Path) -> None:
    """Raises `UserError` if clips are to be spoken although people's answers are about other clips, since the options are then wrong."""
    if not answers or all(plan.key in records for plan in plans):
        return
    found = clip_decisions.decide(answers, group_records(plans, records).values(), out)
    if not found.by_clips:
        reasons = ", ".join(f"{count} {reason}" for reason, count in found.dropped.items())
        raise UserError(f"--decisions: no answer counts ({reasons}); give the options and --out with which these clips were made")


def speak_missing(
    exported: VoiceFolder, plans: Sequence[ClipPlan], records: dict[str, ClipRecord], judge: SpeechJudge, options: PairOptions, model: str
) -> None:
    """Speak and judge what no earlier run has, the longest texts first; `records`, by key, get them."""
    missing = sorted((plan for plan in plans if plan.key not in records), key=lambda plan: -len(plan.spoken.request.text))
    for item in {plan.item.key: plan.item for plan in missing}.values():
        judge.check(item)
    if len(missing) < len(plans):
        print_line(f"{len(plans) - len(missing)} of {len(plans)} clips are from an earlier run with the same settings")
    if missing:
        with closing(exported.open()) as voice:
            if not isinstance(voice, FrameVoice):
                raise UserError(f"{exported.folder}: this kind of voice returns no codes to learn from; pairs are for Qwen3-TTS")
            require_sampling(voice, options.sampling)
            for start in range(0, len(missing), options.batch):
                for record in speak_batch(voice, missing[start : start + options.batch], judge, options.out, model):
                    records[record.key] = record
                print_line(f"{min(start + options.batch, len(missing))} of {len(missing)} clips spoken and judged")


def require_sampling(voice: FrameVoice[Any, Any, Any], sampling: SpeechSampling) -> None:
    """Raises `UserError` for a model that decodes greedily with these settings."""
    if not voice.samples_by_default and sampling.temperature is None:
        raise UserError(
            "this model takes the most likely code unless it gets a temperature, so all clips of a text would be the same; give "
            "--temperature 0.9"
        )


def speak_batch(
    voice: FrameVoice[Any, Any, Any], plans: Sequence[ClipPlan], judge: SpeechJudge, out: Path, model: str
) -> Iterator[ClipRecord]:
    """Speak clips at once; each is written, judged as it was written, and recorded."""
    # A clip alone would have other kernels, and so perhaps other codes than in the batch of a run that was not interrupted.
    results = voice.speak_each([plan.spoken for plan in (plans if len(plans) > 1 else [*plans, *plans])])
    for plan, spoken in zip(plans, results, strict=False):
        path = systems.write_clip(out / CLIPS / f"{plan.name}-{plan.key}.flac", spoken.wave, spoken.rate, model)
        request = plan.spoken.request
        record = ClipRecord(
            key=plan.key,
            text=request.text,
            speaker=plan.item.speaker,
            language=request.language,
            audio=f"{CLIPS}/{path.name}",
            sha256=files.digest(path),
            seed=plan.spoken.sampling.seed,
            codes=spoken.codes.tolist(),
            **store_measures(judge.measure(scoring.read_clip(path), plan.item, spoken.ended)),
        )
        files.append_line(out / RECORDS, record.model_dump_json())
        yield record


def compute_split_position(text: str) -> float:
    """Return a number from 0 to 1 that depends only on the words of a text."""
    return int.from_bytes(hashlib.sha256(normalise_text(text).encode()).digest()[:7]) / 2**56


def pair_text(
    clips: Sequence[ClipRecord], options: PairOptions, decisions: Decisions, counts: Counter[str]
) -> tuple[list[dict[str, JsonValue]], str, ClipTrial | None]:
    """The rows of a text: the judge's pair, unless people decided about the same two clips, and the pairs that people decided. Also why
    there is none, and the clips that people can compare. Adds to `counts` what people decided."""
    judged = choose_pair(clips, options.weights, options.margin, options.max_wer)
    of_judge = [] if isinstance(judged, str) else [str(judged[f"{side}_audio"]) for side in ("chosen", "rejected")]
    rewards = {clip.key: compute_reward(clip.measures, options.weights) for clip in clips}
    own = {clip.audio for clip in clips}
    decided = {pair: one for pair, one in decisions.by_clips.items() if pair <= own}
    rows, reason = list[dict[str, JsonValue]](), ""
    if isinstance(judged, str):
        reason = judged
    elif frozenset(of_judge) not in decided:
        rows.append(judged)
    for pair, one in decided.items():
        same_clips = pair == {*of_judge}
        if one.preferred is None:
            counts["ties"] += 1
            reason = "people preferred neither clip" if same_clips else reason
            continue
        better, worse = one.preferred
        counts["used"] += 1
        counts["in place of the judge's pair"] += same_clips
        counts["against the judge"] += rewards[better.key] < rewards[worse.key]
        votes: dict[str, JsonValue] = {"for": max(one.votes), "against": min(one.votes), "same": one.same}
        rows.append({**make_row(better, worse, rewards), "answers": votes})
    return rows, reason, clip_decisions.choose_trial(clips, rewards, of_judge)


def write_rows(
    items: Sequence[Item],
    plans: Sequence[ClipPlan],
    records: Mapping[str, ClipRecord],
    options: PairOptions,
    notes: Sequence[str],
    answers: Sequence[ClipAnswer] = (),
    torn: int = 0,
) -> dict[str, JsonValue]:
    """Pair the clips of each text; write the rows, the trials and the summary, which is returned. All pairs of a text are on one side of
    the split, and more texts do not move others. Raises `UserError` if all pairs would validate."""
    rows, val, trials, dropped = list[dict[str, JsonValue]](), list[dict[str, JsonValue]](), list[ClipTrial](), Counter[str]()
    groups, counts = group_records(plans, records), Counter[str]()
    decisions = clip_decisions.decide(answers, groups.values(), options.out)
    decisions.dropped.update({"incomplete": torn} if torn else {})
    for item in items:
        found, reason, trial = pair_text(groups[item.key], options, decisions, counts)
        trials += [] if trial is None else [trial]
        (val if compute_split_position(item.text) < options.val_share else rows).extend(found)
        if not found:
            dropped[reason] += 1
    if val and not rows:
        raise UserError(f"no training pairs left: all {len(val)} validate; give a smaller --val-share, or more texts")
    trained = {row["speaker"] for row in rows}  # voice_dpo validates no voice that it does not train
    usable = [row for row in val if row["speaker"] in trained]
    if unusable := len(val) - len(usable):
        dropped["would validate a speaker without training pairs; give a smaller --val-share, or more texts"] += unusable
    val = usable
    files.write_jsonl(options.out / ROWS, rows)
    files.write_jsonl(options.out / TRIALS, (trial.model_dump() for trial in trials))
    if val:
        files.write_jsonl(options.out / VAL, val)
    else:
        files.discard(options.out / VAL)  # of an earlier share
    summary: dict[str, JsonValue] = {
        "made_by": "overtone pairs",  # the studio knows the folder by this
        "pairs": len(rows) + len(val),
        "val": len(val),
        "texts": len(items),
        "dropped": dict(dropped),
        "samples": options.samples,
        "margin": options.margin,
        "max_wer": options.max_wer,
        "weights": options.weights.model_dump(),
        "notes": list(notes),
    }
    if options.decisions:
        summary["decisions"] = {**counts, "dropped": dict(decisions.dropped)}
    files.write_json(options.out / SUMMARY, summary)
    return summary
