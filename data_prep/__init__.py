"""Preparation of training data: recordings to clips with transcripts, conversations to chat rows, images. Importing it loads nothing heavy.

The verbs are in `cli/`. The other folders, in the order of the pipeline:

- `recordings/`: the input; `audio/`: reading and decoding it; `segmentation/`: voice activity and cuts; `transcription/`: Whisper
- `alignment/`: where a text is spoken, and whether it is; `speakers/`: who speaks
- `clips/`: measurements and quality rules; `pipeline/`: the stages of one and of all recordings; `dataset/`: the files, with `manifest.py`
- `audio_codecs/`: codes; `parallel/`: worker processes and devices; `pages/`: the report and the review page
- `chats/`: conversations for language models; `images/`: labelled images for classifiers
"""
