"""Renders records for terminals, Markdown, JUnit and pictures."""
