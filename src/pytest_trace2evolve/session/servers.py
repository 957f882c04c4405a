"""Starts and stops servers of models in local folders.

The controller of a run starts the servers, so that all processes of the run share one copy of the weights.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from pytest_trace2evolve.engine.live import LiveSettings, ServedModel
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.serving.process import LocalServer
from pytest_trace2evolve.session.plan import Plan

ServedFolder = tuple[str, dict[str, Path]]
"""The served content of a folder: the digest of its model's weights, and adapters by name."""


def model_folders(plan: Plan) -> dict[Path, ServedFolder]:
    """Return the folders of the local models that a run uses, with the served content of each folder."""
    served_folders: dict[Path, ServedFolder] = {}
    for model in (model for live in plan.all_live for model in live.models):
        if model.folder is not None:
            _, adapters = served_folders.setdefault(model.folder, (model.base_weights, {}))
            if model.adapter is not None:
                adapters[model.model] = model.adapter
    return served_folders


def use_servers(plan: Plan, addresses: Mapping[str, ServedModel]) -> Plan:
    """Return a copy of a plan in which local models have the addresses of their servers."""

    def model_at_server(model: ModelSettings) -> ModelSettings:
        address = addresses.get(str(model.folder)) if model.folder else None
        return model if address is None else model.with_server(address.base_url, address.token)

    def live_at_servers(live: LiveSettings | None) -> LiveSettings | None:
        return None if live is None else live.map_models(model_at_server)

    confirmation = plan.confirmation
    if confirmation is not None:
        sides = {
            suite: replace(setup, live=live_at_servers(setup.live))
            for suite, setup in confirmation.sides.items()
        }
        confirmation = replace(confirmation, sides=sides)
    return replace(plan, live=live_at_servers(plan.live), confirmation=confirmation)


class LocalServers:
    """The servers that a run started, one for each folder.

    Attributes:
        addresses: The address of each folder's server.
    """

    def __init__(self) -> None:
        self._servers: list[LocalServer] = []
        self._served: dict[Path, ServedFolder] = {}
        self.addresses: dict[str, ServedModel] = {}

    def start(self, folders: Mapping[Path, ServedFolder]) -> None:
        """Start the servers that do not run yet, and wait until all answer.

        Raises:
            ModelFolderError: a model or an adapter cannot be served.
        """
        for path, served_folder in folders.items():
            if self._served.get(path) == served_folder:
                continue
            weights, adapters = served_folder
            server = LocalServer(path, adapters)
            self._servers.append(server)
            self._served[path] = served_folder
            self.addresses[str(path)] = ServedModel(server.base_url, server.token, weights)

    def watch(self, on_end: Callable[[str], None]) -> None:
        """Call `on_end` with the reason if a server ends."""
        for server in self._servers:
            server.watch(on_end)

    def close(self) -> None:
        """Stop all servers."""
        for server in self._servers:
            server.close()
        self._servers.clear()
        self._served.clear()
