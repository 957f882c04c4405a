"""The built-in agents: a chat model, the router over adapters, and the reference agents."""
