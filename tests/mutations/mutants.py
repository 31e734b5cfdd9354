"""One-line faults of the product, each with the test that notices it. `make mutants` tries them all.

A fault that the tests once did not see comes here together with its test, so that neither can be lost.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """One fault."""

    file: str
    """Of the product, relative to the root."""
    old: str
    """Part of the source that stands in the file exactly once."""
    new: str
    """What stands there instead."""
    test: str
    """Id of the test that fails then, `tests/…/test_x.py::test_y`, with all its parameters; none that is marked slow."""
    fault: str
    """What the change would mean for a user."""


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "finetune/distributed/sharding.py",
        "dist.all_reduce(square, group=mesh.get_group(axis))",
        "dist.all_reduce(square, group=mesh.get_group(0))",
        "tests/finetune/distributed/test_sharding.py::test_on_four_ranks_the_norm_is_that_of_one_process",
        "the clip norm is summed over one axis of the mesh only",
    ),
    Mutant(
        "finetune/distributed/sharding.py",
        "if not placement.is_replicate():",
        "if placement is not None:",
        "tests/finetune/distributed/test_sharding.py::test_on_four_ranks_the_norm_is_that_of_one_process",
        "what is the same on several ranks counts several times in the clip norm",
    ),
    Mutant(
        "recipes/voice_clone/model/qwen3_tts_model.py",
        "states[chosen], embedded[chosen], codes[chosen]",
        "states[chosen], inputs[chosen], codes[chosen]",
        "tests/recipes/voice_clone/model/test_qwen3_tts_model.py::test_dropped_frames_still_condition_the_code_predictor",
        "frames that the talker does not hear are hidden from the code predictor, too",
    ),
    Mutant(
        "recipes/voice_clone/model/qwen3_tts_model.py",
        '"sub_accuracy": sub_hits * scale',
        '"sub_accuracy": sub_hits',
        "tests/recipes/voice_clone/model/test_qwen3_tts_model.py::test_chosen_frames_are_scaled_to_all_frames_in_loss_and_accuracy",
        "sub_accuracy is too low by the share of options.sub_frames",
    ),
    Mutant(
        "finetune/training/evaluation.py",
        "(turn.batch.targets[name] if turn.counts else 0)",
        "turn.batch.targets[name]",
        "tests/finetune/training/test_evaluation.py::test_the_filler_rows_of_a_rank_do_not_count",
        "fillers are counted in the validation loss of several ranks",
    ),
    Mutant(
        "finetune/training/evaluation.py",
        "(term.sum.double() if turn.counts else zero)",
        "term.sum.double()",
        "tests/finetune/training/test_evaluation.py::test_the_filler_rows_of_a_rank_do_not_count",
        "fillers are summed in the validation loss of several ranks",
    ),
    Mutant(
        "finetune/checkpointing/remote_copies.py",
        'remote.upload(snapshot, f"{url}/{snapshot.name}", MANIFEST)',
        'remote.upload(snapshot, f"{url}/{snapshot.name}", "state.json")',
        "tests/finetune/checkpointing/test_remote_copies.py::test_the_manifest_is_uploaded_after_all_other_files",
        "a copy that was cut off looks whole",
    ),
    Mutant(
        "finetune/checkpointing/run_lock.py",
        "            self.require()\n        self._thread.start()",
        "        self._thread.start()",
        "tests/finetune/checkpointing/test_run_lock.py::test_the_new_owner_checks_the_lock_again_before_it_starts",
        "two runs that take over a dead one's place both begin",
    ),
    Mutant(
        "finetune/data/batching.py",
        "turns = permute(np.arange(len(groups)), len(groups), derive_key(order.seed, epoch, window))",
        "turns = permute(np.arange(len(groups)), len(groups), derive_key(order.seed, window))",
        "tests/finetune/data/test_batching.py::test_the_order_of_micro_batches_differs_by_epoch_window_and_seed",
        "micro-batches come in the same order in every epoch",
    ),
    Mutant(
        "finetune/modeling/optimizers.py",
        "warmup = math.ceil(train.warmup * total)",
        "warmup = int(train.warmup * total)",
        "tests/finetune/modeling/test_optimizers.py::test_schedules_are_defined_at_their_edges",
        "a warm-up is rounded down, and one of less than a step is none",
    ),
    Mutant(
        "recipes/voice_clone/model/dataset_speakers.py",
        "key=lambda clip: (-clip[0], str(clip[1]))",
        "key=lambda clip: (clip[0], str(clip[1]))",
        "tests/recipes/voice_clone/model/test_dataset_speakers.py::test_the_longest_clips_are_the_references",
        "the shortest clips are the references",
    ),
    Mutant(
        "recipes/voice_clone/model/dataset_speakers.py",
        "(self.languages.most_common(1)[0][0] or None)",
        "(next(iter(self.languages)) or None)",
        "tests/recipes/voice_clone/model/test_dataset_speakers.py::test_the_language_of_a_speaker_is_the_most_frequent_one",
        "a speaker's language is that of the first clip",
    ),
    Mutant(
        "recipes/speech/evaluation/metrics.py",
        "INTERVAL = (2.5, 97.5)",
        "INTERVAL = (5.0, 95.0)",
        "tests/recipes/speech/evaluation/test_metrics.py::test_the_interval_covers_95_percent",
        "intervals of 90 % are called intervals of 95 %",
    ),
    Mutant(
        "recipes/speech/evaluation/audio_measures.py",
        "lengths = np.diff(np.append(edges, len(samples)))",
        "lengths = np.full(len(edges), FRAME)",
        "tests/recipes/speech/evaluation/test_audio_measures.py::test_a_partial_last_frame_counts_by_its_length",
        "the last, partial frame counts as a whole one, and a clip may have more silence than it lasts",
    ),
    Mutant(
        "data_prep/segmentation/vad.py",
        "Region(region.start, min(region.stop, length))",
        "Region(region.start, region.stop)",
        "tests/data_prep/segmentation/test_vad.py::test_no_region_ends_after_the_last_sample",
        "a region of speech ends after the last sample",
    ),
    Mutant(
        "data_prep/clips/quality_rules.py",
        "len(paces) < PACE_CLIPS or",
        "len(paces) <= PACE_CLIPS or",
        "tests/data_prep/clips/test_quality_rules.py::test_eight_clips_say_what_a_speakers_pace_is",
        "a speaker with exactly eight clips is held to no pace",
    ),
    Mutant(
        "data_prep/clips/quality_rules.py",
        "if len(distances) >= VOICE_CLIPS",
        "if len(distances) > VOICE_CLIPS",
        "tests/data_prep/clips/test_quality_rules.py::test_eight_clips_say_how_far_a_voice_may_be",
        "a speaker with exactly eight clips is not checked for strangers",
    ),
    Mutant(
        "recipes/voice_clone/model/sequence_layout.py",
        '(length := len(sample["text"])) > ids.positions',
        "(length := len(codes)) > ids.positions",
        "tests/recipes/voice_clone/model/test_sequence_layout.py::test_text_and_frames_must_fit_into_the_positions_of_the_model",
        "a clip and its text may take more positions than the model has",
    ),
    Mutant(
        "data_prep/audio/waveform.py",
        '_probe_whole(path).model_copy(update={"offset": 0.0})',
        "_probe_whole(path)",
        "tests/recipes/voice_clone/model/test_speaker_embeddings.py::test_the_vector_of_a_file_equals_that_of_the_stock_package",
        "a reference clip's offset is subtracted, and a speaker's vector is not the stock package's",
    ),
    Mutant(
        "recipes/voice_clone/model/speaker_embeddings.py",
        'SAMPLE_RATE, quality="HQ")',
        'SAMPLE_RATE, quality="VHQ")',
        "tests/recipes/voice_clone/model/test_speaker_embeddings.py::test_the_vector_of_a_file_equals_that_of_the_stock_package",
        "a reference clip of another rate gives another vector than in the stock package",
    ),
    Mutant(
        "recipes/voice_clone/exporting/model_card.py",
        'ref_audio="clip.wav", x_vector_only_mode=True, non_streaming_mode=True',
        'ref_audio="clip.wav", non_streaming_mode=True',
        "tests/recipes/voice_clone/exporting/test_model_card.py::test_the_code_in_the_card_runs",
        "the code that a base export's card shows does not run",
    ),
)
