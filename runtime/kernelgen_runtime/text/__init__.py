"""Owns text: tokenizer, chat template, generation defaults, and text that grows token by token."""
