"""Production logs of conversations: reading them, replacing personal data, drafting and reviewing tasks."""
