"""Agents: who answers the user. `oracle` and `nop` frame every real one from above and from below."""
