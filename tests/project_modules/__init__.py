"""Modules that the small projects of tests import.

They are imported by their plain names: an agent counts with all files of its package, so an agent that
imported one from package `tests` would have all tests read and parsed in every session.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
