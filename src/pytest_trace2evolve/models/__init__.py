"""Clients of OpenAI-compatible endpoints, their settings, prices and stored answers."""
