"""Servers of models in local folders.

The controller of a run starts the servers, so that all processes of the run share one copy of the weights.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_trace2evolve.engine.live import Address, LiveSettings
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.serving.process import LocalServer
from pytest_trace2evolve.session.plan import Plan


@dataclass(frozen=True)
class ServedFolder:
    """The served content of a folder: the digest of its model's weights, and adapters by name."""

    weights: str
    adapters: dict[str, Path] = field(default_factory=dict)


def folders(plan: Plan) -> dict[Path, ServedFolder]:
    """The folders of the local models that a run uses."""
    found: dict[Path, ServedFolder] = {}
    for model in (model for live in plan.all_live for model in live.models):
        if model.folder is not None:
            served = found.setdefault(model.folder, ServedFolder(model.base_weights))
            if model.adapter is not None:
                served.adapters[model.model] = model.adapter
    return found


def at_servers(plan: Plan, addresses: Mapping[str, Address]) -> Plan:
    """The same plan, with local models at the addresses of their servers."""

    def model_at_server(model: ModelSettings) -> ModelSettings:
        address = addresses.get(str(model.folder)) if model.folder else None
        return model if address is None else model.served(address.base_url, address.token)

    def live_at_servers(live: LiveSettings | None) -> LiveSettings | None:
        return None if live is None else live.map_models(model_at_server)

    confirm = plan.confirm
    if confirm is not None:
        sides = {
            suite: replace(party, live=live_at_servers(party.live)) for suite, party in confirm.sides.items()
        }
        confirm = replace(confirm, sides=sides)
    return replace(plan, live=live_at_servers(plan.live), confirm=confirm)


class LocalServers:
    """The servers that a run started, one for each folder.

    Attributes:
        addresses: The address of each folder's server.
    """

    def __init__(self) -> None:
        self._servers: list[LocalServer] = []
        self.addresses: dict[str, Address] = {}

    def start(self, wanted: Mapping[Path, ServedFolder]) -> None:
        """Start the servers and wait until all answer.

        Raises:
            ModelFolderError: a model or an adapter cannot be served.
        """
        for path, served in wanted.items():
            server = LocalServer(path, served.adapters)
            self._servers.append(server)
            self.addresses[str(path)] = Address(server.base_url, server.token, served.weights)

    def watch(self, on_end: Callable[[str], None]) -> None:
        """Call `on_end` with the reason if a server ends."""
        for server in self._servers:
            server.watch(on_end)

    def close(self) -> None:
        """Stop all servers."""
        for server in self._servers:
            server.close()
        self._servers.clear()
