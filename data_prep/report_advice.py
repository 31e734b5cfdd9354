"""What each reason of a loss means, and what a person could do about it."""

from __future__ import annotations

from data_prep.score import PRESETS

ELSEWHERE = {
    "codec_error": "the speech tokenizer failed on it",
    "crashed": "work on it ended the process",
    "decoder_crashed": "the decoder crashed on it",
    "decoder_stalled": "the decoder did not come back",
    "duplicate": "the same sound is there already",
    "empty": "a file without a sample",
    "guard": "too near to the clips that validate",
    "nan": "samples that are not numbers",
    "no_file": "it is no file that can be read",
    "no_speech": "the detector hears no speech in it",
    "no_transcript": "no transcript lies beside the recording",
    "review": "rejected by a person who listened",
    "silent": "nothing but silence",
    "truncated": "it ends before the length that it declares",
    "unreadable": "no decoder can read the file",
}
"""Reasons that no rule of `score` gives."""

CONVERT = "Convert it to WAV or FLAC with a program that plays it."
INVENTED = "Whisper may have invented this text: listen in review, correct it there, or try a larger model."
MISPLACED = "Often the text belongs to another stretch: listen in review and correct it there."
ADVICE = {
    "asr_error": "Run again; if it happens again, the next larger or smaller model of --whisper may do.",
    "clipped": "Record at a lower level. Takes that are clipped cannot be repaired well.",
    "codec_error": "Look at the detail in rejects.jsonl, and run data_prep codes again.",
    "crashed": "Run again; if it happens again, convert it to WAV or FLAC, and look whether the memory is enough.",
    "cut_in_sound": "There is no pause where the text ends. Transcripts with exact times help, or a longer --longest.",
    "decoder_crashed": CONVERT,
    "decoder_stalled": CONVERT,
    "duplicate": "Nothing to do: one of them is used.",
    "empty": "Copy the file again from where it came.",
    "guard": "Nothing is wrong with them: training must not know the validation. With several recordings none are lost so.",
    "long_pause": "Listen: if only the pause is wrong, a smaller --target cuts there.",
    "looping_text": INVENTED,
    "maybe_no_speech": INVENTED,
    "mostly_silence": "Listen: the level of the recording may be too low for the detector.",
    "nan": "Export the file again from the program that made it.",
    "narrow_band": "A telephone or a low bit rate: look for the original.",
    "no_file": "Look whether it is a link to nowhere, or closed to you.",
    "no_speech": "If somebody does speak in it, the level may be too low.",
    "no_text": "Look whether the transcript covers the whole recording; a text can be written in review where a clip has some.",
    "no_transcript": "Put a transcript beside it, or let --whisper listen.",
    "noisy": "Record nearer to the microphone, or use a more lenient preset if these sound fine.",
    "other_speaker": "Listen: a guest, an interviewer, a radio? If it is the speaker, keep it in review.",
    "repeated_text": INVENTED,
    "review": "Press Undo in review to take one back.",
    "silent": "Look whether the right channel was recorded.",
    "too_fast": MISPLACED,
    "too_long": "Speech without a pause: a larger --longest keeps it.",
    "too_short": "A smaller --shortest keeps them.",
    "too_slow": MISPLACED,
    "truncated": "Copy the file again from where it came.",
    "unfinished_text": INVENTED,
    "unreadable": CONVERT,
    "unsure_language": "Give --language if it is known.",
    "unsure_text": INVENTED,
    "words_outside_speech": INVENTED,
}


def explain(reason: str) -> str:
    """A few words for people; empty for a reason from elsewhere."""
    rules = {rule.reason: rule.says for preset in PRESETS.values() for rule in preset}
    return (rules | ELSEWHERE).get(reason, "")
