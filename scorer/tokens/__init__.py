"""Tokenizers of checkpoints, and text to token ids."""
