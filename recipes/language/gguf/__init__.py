"""Exports for llama.cpp and Ollama: runs llama.cpp's own converter, and compares what it wrote with what was trained.

The converter ends with exit code 0 also if the file has another tokenizer, so nothing that it writes is believed: `tokenizer_check` and
`tensor_check` read the file back.
"""
