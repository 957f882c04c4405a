"""The local server: an OpenAI-compatible endpoint over a model folder, and what starts one."""
