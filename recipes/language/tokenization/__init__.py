"""Turns rows into token ids and a mask of what is learned: chat templates, the spans of the assistant, the tokens that end an answer."""
