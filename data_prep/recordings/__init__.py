"""The input: recording files, local and remote, and the transcripts and speaker labels that come with them."""
