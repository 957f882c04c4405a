"""The embedded language model: its tokenizer, its size and how it is trained from dialogues."""
