"""Activation: the plugin objects of a process, controller or worker, and the markers of its splits."""

import pytest

from pytest_trace2evolve.plugin import pressure as fixtures
from pytest_trace2evolve.plugin.controller import Controller
from pytest_trace2evolve.plugin.items import PLUGIN_NAME
from pytest_trace2evolve.plugin.participant import Participant, Worker
from pytest_trace2evolve.plugin.pressure import MARKER, NAME, Gathering, Pressure
from pytest_trace2evolve.plugin.summary_writers import sanitize_terminal


def activate(config: pytest.Config) -> None:
    """Register the run's plugin object and the markers of its splits.

    Raises:
        pytest.UsageError: the ini values are wrong.
    """
    run: Participant = Worker(config) if hasattr(config, "workerinput") else Controller(config)
    for split in run.project.splits.values():
        config.addinivalue_line("markers", f"{split.name}: trace2evolve split: {split.description}")
    config.addinivalue_line("markers", f"{MARKER}(FILE, ...): one test a case of these files, as 'case'")
    config.pluginmanager.register(run, PLUGIN_NAME)
    config.pluginmanager.register(Pressure(run), NAME)
    config.pluginmanager.register(fixtures)
    if isinstance(run, Controller):
        sanitize_terminal(config)
        config.pluginmanager.register(Gathering(run))
