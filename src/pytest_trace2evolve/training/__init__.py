"""Training: the pocket model from nothing, adapters by GRPO."""
