"""The protocol Seed-TTS-eval: its prompts, word error rate and speaker similarity, computed as its public scripts compute them."""
