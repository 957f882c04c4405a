"""Worlds: benchmark domains with their tasks, tools and databases, opened from a provider's package."""
