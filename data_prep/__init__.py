"""From recordings to training data, verb by verb. Importing this package loads nothing heavy.

A verb is the module of its name: `voice`, `codes`, `report`, `review`, `check`, `export`, `text`. Their rooms, in the order of the work:

- which recordings: `elsewhere`, `sources`, `speakers`; the user's own texts: `transcripts`, `utterances`, `cues`, `table`
- sound: `formats`, `decoder`, `audio`, `bandwidth`, `loudness`, `vad`
- hearing: `transcribe`, `faster`, `packs`, `languages`, `segment`, `clips`, `measure`, `voices`
- one recording, and all of them: `recording`, `stages`, `models`, `hearing`, `workers`, `pool`, `ray_engine`, `progress`, `device`
- the dataset: `score`, `duplicates`, `decisions`, `judge`, `split`, `references`, `dataset`, `manifest`, `account`, `dry_run`
- models of the package `qwen_tts`: `qwen`, `rosa`, `hub`, `codec`, `encoding`, `speaker_encoder`; the demo Whisper: `whisper_demo`
- codecs and speaker encoders of any model: `codec_interface`, `codec_choice`
- what a verb has to itself begins with its name: `text_*`, `report_*`, `review_*`, `export_*`; of `check`: `lines`,
  `row_checks`, `sounds`; of all pages: `web`, `request_guard`, `gradio_routes`
"""
