"""The local OpenAI-compatible server for model folders."""
