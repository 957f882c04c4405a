"""GRPO on LoRA adapters, by trl: the recipe, the trainer whose rollouts hold a customer, and what is kept."""
