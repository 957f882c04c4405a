"""Adapters by GRPO: environments, the server's tokens and the trainer put together, and what came of it."""
