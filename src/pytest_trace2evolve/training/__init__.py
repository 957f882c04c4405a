"""Trains LoRA adapters by GRPO with trl and peft."""
