"""Helpers without a subject of their own: files, JSON, text, secrets, HTTP, optional packages."""
