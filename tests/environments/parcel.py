"""A module as a model might write one, and ways to break it."""

from pathlib import Path

NAME = "parcel_tracing"
GOOD = (Path(__file__).parent / "modules" / "parcel_tracing.py").read_text(encoding="utf-8")


def spoiled(old: str, new: str) -> str:
    """The module with one change."""
    assert old in GOOD
    return GOOD.replace(old, new)
