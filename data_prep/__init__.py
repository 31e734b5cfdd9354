"""Preparation of training data: speech recordings to clips with transcripts, conversations to chat rows. Importing it loads nothing heavy.

Each command-line verb is the module of that name: `voice`, `codes`, `report`, `review`, `check`, `export`, `text`.
The other modules, in the order of the pipeline:

- input: recordings (`elsewhere`, `sources`, `speakers`) and existing transcripts (`transcripts`, `utterances`, `cues`, `table`)
- audio: `formats`, `decoder`, `audio`, `bandwidth`, `loudness`, `vad`
- transcription, segmentation, measures: `transcribe`, `faster`, `packs`, `languages`, `segment`, `clips`, `measure`, `voices`
- pipeline of one and of all recordings: `recording`, `stages`, `models`, `hearing`, `workers`, `pool`, `ray_engine`, `progress`, `device`
- clip selection: `score`, `duplicates`, `decisions`, `judge`, `dry_run`; dataset: `split`, `references`, `dataset`, `manifest`, `account`
- models of the package `qwen_tts`: `qwen`, `rosa`, `hub`, `codec`, `encoding`, `speaker_encoder`; the demo Whisper: `whisper_demo`
- codecs and speaker encoders of any model: `codec_interface`, `codec_choice`
- what a verb has to itself begins with its name: `text_*`, `report_*`, `review_*`, `export_*`; of `check`: `lines`,
  `row_checks`, `sounds`; of all pages: `web`, `request_guard`, `gradio_routes`
"""
