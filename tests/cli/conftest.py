"""Fixtures of tests that run commands in a small project."""

from tests.plugin.conftest import command, letters, project

__all__ = ["command", "letters", "project"]
