"""Explanation of each rejection reason, and what the user can do about it."""

from __future__ import annotations

from overtone.data_prep.clips.quality_rules import PRESETS

OTHER_REASONS = {
    "codec_error": "the speech tokenizer failed on it",
    "crashed": "the worker process crashed on it",
    "decoder_crashed": "the decoder crashed on it",
    "decoder_stalled": "the decoder stalled",
    "duplicate": "the same audio as another clip or file",
    "empty": "a file without samples",
    "garbled_text": "its text was decoded with another encoding than its own",
    "guard": "too close to the validation clips",
    "misfit_text": "the texts of its recording do not fit the length of the speech",
    "mistimed_text": "the cues of its subtitles do not begin where speech begins",
    "same_text": "five or more clips of very different lengths have this sentence",
    "nan": "NaN or Inf samples",
    "no_file": "not a readable file",
    "no_speech": "no speech detected",
    "no_transcript": "no transcript next to the recording",
    "missing_channel": "the file does not have the channel that --channels names",
    "people_on_channels": "two people on two channels",
    "other_language": "its text is in another language than was given",
    "review": "rejected in review",
    "silent": "only silence",
    "synthetic": "marked as synthetic speech",
    "truncated": "shorter than its header declares",
    "unreadable": "no decoder can read the file",
}
"""Reasons that are not rules of `data_prep/clips/quality_rules.py`."""

CONVERT = "Convert it to WAV or FLAC with a program that can play it."
INVENTED = "Possibly hallucinated text: listen and correct it in review, or try a larger Whisper model."
MISPLACED = "The text often belongs to another part of the recording: listen and correct it in review."
ADVICE = {
    "asr_error": "Run again; if it fails again, try the next larger or smaller --whisper model.",
    "background_sound": "Record in a quiet room, without music; a separator of vocals may help, but leaves traces that a model learns. "
    "If you hear the voice alone, keep it in review.",
    "clipped": "Record at a lower level. Clipped takes cannot be repaired well.",
    "codec_error": "See the detail in rejects.jsonl, then run overtone codes again.",
    "crashed": "Run again; if it fails again, convert it to WAV or FLAC and check that there is enough memory.",
    "cut_in_sound": "There is no pause where the text ends. Transcripts with exact times or a larger --longest help.",
    "decoder_crashed": CONVERT,
    "decoder_stalled": CONVERT,
    "duplicate": "Nothing to do: one copy is used.",
    "empty": "Copy the file again from its origin.",
    "garbled_text": "Save the transcript again as UTF-8; the detail in rejects.jsonl names the encoding that it looks like.",
    "guard": "These clips are fine, but training must not see speech next to validation clips. With several recordings none are lost.",
    "flattened": "The peaks were cut off by the recorder or an earlier edit, then lowered. Look for the original.",
    "guest_speaker": "A guest or an interviewer: nothing to do, or use --diarize to keep each voice as a speaker of its own.",
    "long_pause": "Listen: if the clip is fine except for the pause, a smaller --target cuts there.",
    "looping_text": INVENTED,
    "maybe_no_speech": INVENTED,
    "mostly_silence": "Listen: the recording may be too quiet for speech detection.",
    "nan": "Export the file again from the program that created it.",
    "narrow_band": "Telephone audio or a low bit rate: look for the original.",
    "no_file": "Check for a broken link or missing read permission.",
    "no_speech": "If it contains speech, its level may be too low.",
    "no_text": "Check that the transcript covers the whole recording; clips with some text can be corrected in review.",
    "no_transcript": "Put a transcript next to it, or use --whisper.",
    "noisy": "Record closer to the microphone, or use a more lenient preset if these clips sound good.",
    "other_language": "Give the language that the texts are in with --language, or the transcripts of these recordings.",
    "other_speaker": "Listen: a guest, an interviewer, a radio? If it is the right speaker, keep it in review.",
    "missing_channel": "Give --channels auto, or prepare these recordings by themselves.",
    "people_on_channels": "Use --channels split for a speaker of each channel, or a channel's name for one of them.",
    "overlapped_speech": "Listen: people interrupt each other, or a radio or television speaks too. Keep clean ones in review.",
    "poor_sound": "Listen: an echo of the room, or traces of a codec or noise filter? A model learns them. Keep good ones in review.",
    "repeated_text": INVENTED,
    "review": "Press Undo in review to revert a decision.",
    "silent": "Check that the correct channel was recorded.",
    "synthetic": "A model trained on synthetic speech learns its faults. If you want that, give --allow-synthetic.",
    "text_contradicted": "The transcript does not match the sound: check that it belongs to this recording, and its times.",
    "text_not_spoken": "The transcript does not match the sound: check that it belongs to this recording, and its times.",
    "too_fast": MISPLACED,
    "too_long": "Speech without a pause: a larger --longest keeps it.",
    "too_quiet": "Record at a higher level: raised to the usual level, the noise of the recorder is raised too.",
    "too_short": "A smaller --shortest keeps them.",
    "too_slow": MISPLACED,
    "truncated": "Copy the file again from its origin.",
    "two_voices": "With times of each word (Whisper) clips are cut where the voice changes; split longer subtitles there.",
    "unfinished_text": INVENTED,
    "unreadable": CONVERT,
    "unsure_language": "Set --language if it is known.",
    "unsure_text": INVENTED,
    "words_outside_speech": INVENTED,
}


def explain_reason(reason: str) -> str:
    """Return the short description of a reason; empty for an unknown one."""
    rules = {rule.reason: rule.description for preset in PRESETS.values() for rule in preset}
    return (rules | OTHER_REASONS).get(reason, "")
