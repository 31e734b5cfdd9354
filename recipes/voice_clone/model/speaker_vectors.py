"""Speaker vectors: for each speaker, the fp32 mean of the base's own speaker encoder over several reference clips.

The vector of one clip would include the expression of that clip; the mean over several represents the voice. With `options.vector_steps`,
the means are then fitted to the clips (`vector_fitting`). The vectors are computed once and cached in
`<run.dir>/cache/speakers.safetensors`. They are recomputed if the data, the reference clips or the encoder change.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor, nn

from overtone.data_prep.audio_codecs import qwen3_tts_speaker_encoder
from overtone.finetune.config import Config
from overtone.finetune.data.row_problems import SHOWN_PROBLEMS
from overtone.finetune.errors import UserError
from overtone.finetune.modeling.loading import resolve_source
from overtone.finetune.storage import files, input_files, remote
from overtone.finetune.storage.json_schema import JsonPart, parse_model
from overtone.finetune.terminal import print_diagnostic
from overtone.recipes.qwen3_tts.model.reference_clips import read_reference_clip
from overtone.recipes.qwen3_tts.model.sequence_layout import TokenIds
from overtone.recipes.qwen3_tts.state import VoiceCloneState
from overtone.recipes.speech.training_files import list_training_files

from ..options import Options
from . import vector_fitting
from .dataset_speakers import (
    DatasetSpeaker,
    assign_embedding_rows,
    collect_speakers,
    describe_renamed,
    make_recipe_state,
)

DECODED_CLIPS = 64
"""Number of reference clips that `overtone plan` decodes; for the others it only checks that they exist."""


@dataclass(frozen=True)
class SpeakerVectors:
    """The speakers of a run, in the order of their vectors."""

    vectors: Tensor
    """[speakers, H] fp32."""
    state: VoiceCloneState


class CachedVectors(JsonPart):
    """Description of the vectors in their file. It is in the same file, so that neither can be newer than the other."""

    key: str
    """Key of `compute_cache_key`."""
    state: VoiceCloneState


def prepare(config: Config[Options]) -> None:
    """Find the speakers in the data and compute, and perhaps fit, their vectors, unless the cache already has them.

    Raises `UserError` with file and line for a row without speaker, codes or reference, and for a speaker who is only in `data.val`.
    """
    options, run_dir = config.options, config.run.dir
    base = resolve_source(config.model.source, config.model.revision)
    model_config = qwen3_tts_speaker_encoder.read_base_config(base)
    ids = TokenIds.from_config(model_config)
    speakers = collect_speakers(config.data, options.speaker, ids)
    for sentence in describe_renamed(speakers):
        print_diagnostic(sentence)
    references = {speaker.name: speaker.select_references(options.references) for speaker in speakers}
    for train in list_training_files(config.data):
        own = (path for paths in references.values() for path in paths if path.is_relative_to(train.parent.resolve()))
        remote.fetch_missing(train, own)
    key = compute_cache_key(base, references)
    limit = config.data.sequence_length or config.train.micro_tokens
    clips = vector_fitting.choose_clips(config.data, options, limit, base, ids) if options.vector_steps else {}
    if clips:
        key = vector_fitting.extend_cache_key(key, base, options.vector_steps, clips)
    state = make_recipe_state(config, speakers, assign_embedding_rows(model_config, [speaker.name for speaker in speakers]))
    cached = _read_cache(run_dir)
    if cached is None or cached.key != key:
        encoder = qwen3_tts_speaker_encoder.load_encoder(base)
        vectors = [compute_mean_vector(encoder, paths) for paths in references.values()]
        if clips:
            vectors = vector_fitting.fit_vectors(base, model_config, clips, vectors, options.vector_steps, config.train.micro_tokens)
    else:
        vectors = list(load_speaker_vectors(run_dir).vectors)
    if cached != (now := CachedVectors(key=key, state=state)):
        _write_cache(run_dir, vectors, now)


def load_speaker_vectors(run_dir: Path) -> SpeakerVectors:
    """The vectors and the state that `prepare` cached for this run. Raises `UserError` if they are missing."""
    cached = _read_cache(run_dir)
    if cached is None:
        raise UserError(f"{_cache_path(run_dir)} is missing or damaged; training writes it when it starts, so start the training again")
    return SpeakerVectors(load_file(_cache_path(run_dir))["speaker_vectors"], cached.state)


def compute_cache_key(base: Path, references: dict[str, list[Path]]) -> str:
    """Digest of everything that the vectors depend on: the encoder's weights, and for each speaker the content of the reference clips."""
    digest = hashlib.sha256()
    for name, tensor in sorted(qwen3_tts_speaker_encoder.read_encoder_weights(base).items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.float().numpy().tobytes())
    for name, paths in references.items():
        digest.update(json.dumps([name, [_digest_clip(path) for path in paths]]).encode())
    return digest.hexdigest()


def _digest_clip(path: Path) -> str:
    try:
        return files.digest(path)
    except OSError as error:
        raise UserError(f"reference clip {path}: {error.strerror}; restore it or remove its rows") from None


def compute_mean_vector(encoder: nn.Module, references: list[Path]) -> Tensor:
    """[H] fp32: the mean over the clips, computed in fp32 because half precision would round the differences away."""
    return torch.stack(
        [torch.from_numpy(qwen3_tts_speaker_encoder.embed_clip(encoder, read_reference_clip(path))) for path in references]
    ).mean(0)


def check_reference_clips(speakers: list[DatasetSpeaker], count: int) -> None:
    """Find errors of `prepare` before anything is computed. Raises `UserError` that lists missing reference clips, and those of the first
    `DECODED_CLIPS` that cannot be decoded. Any sample rate is fine: clips are resampled."""
    problems = []
    for number, path in enumerate(clip for speaker in speakers for clip in speaker.select_references(count)):
        try:
            if number < DECODED_CLIPS:
                read_reference_clip(path)
            else:
                path.stat()
        except UserError as problem:
            problems.append(str(problem))
        except OSError as error:
            problems.append(f"reference clip {path}: {error.strerror}; restore it or remove its rows")
    if problems:
        more = f"\n  … and {len(problems) - SHOWN_PROBLEMS} more" if len(problems) > SHOWN_PROBLEMS else ""
        raise UserError(f"{len(problems)} bad reference clips:\n  " + "\n  ".join(problems[:SHOWN_PROBLEMS]) + more)


def _cache_path(run_dir: Path) -> Path:
    return run_dir / "cache" / "speakers.safetensors"


def _read_cache(run_dir: Path) -> CachedVectors | None:
    path = _cache_path(run_dir)
    if not path.is_file():
        return None
    try:
        input_files.require_regular(path)
        with safe_open(path, framework="pt") as file:
            return parse_model(CachedVectors, json.loads(file.metadata()["overtone"]))
    except (SafetensorError, KeyError, TypeError, ValueError):
        return None


def _write_cache(run_dir: Path, vectors: list[Tensor], facts: CachedVectors) -> None:
    data = save({"speaker_vectors": torch.stack(vectors).float().contiguous()}, metadata={"overtone": facts.model_dump_json()})
    files.write_bytes(_cache_path(run_dir), data)
