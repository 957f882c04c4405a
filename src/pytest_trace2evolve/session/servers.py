"""The servers of models in folders of this machine.

One process of a run starts them, before any worker: all share one copy of the weights, and one path of code,
the API's client.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_trace2evolve.engine.live import Address, LiveSettings
from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.serving.process import LocalServer
from pytest_trace2evolve.session.plan import Plan


def at_servers(plan: Plan, served: Mapping[str, Address]) -> Plan:
    """The same plan, its local models asked where they are served."""
    confirm = plan.confirm
    if confirm is not None:
        sides = {
            suite: replace(party, live=_placed(party.live, served)) for suite, party in confirm.sides.items()
        }
        confirm = replace(confirm, sides=sides)
    return replace(plan, live=_placed(plan.live, served), confirm=confirm)


@dataclass(frozen=True)
class Wanted:
    """What is to be served of one folder: its model, with its digest, and adapters by name."""

    weights: str
    adapters: dict[str, Path] = field(default_factory=dict)


def folders(plan: Plan) -> dict[Path, Wanted]:
    """The folders whose models a run asks."""
    found: dict[Path, Wanted] = {}
    for model in (model for live in plan.all_live for model in live.models):
        if model.folder is not None:
            wanted = found.setdefault(model.folder, Wanted(model.base_weights))
            if model.adapter is not None:
                wanted.adapters[model.model] = model.adapter
    return found


def _placed(live: LiveSettings | None, served: Mapping[str, Address]) -> LiveSettings | None:
    if live is None:
        return None
    routes = live.routes
    if routes is not None:
        models = {name: _asked(model, served) for name, model in routes.models.items()}
        routes = replace(routes, base=_asked(routes.base, served), models=models)
    return replace(live, agent=_asked(live.agent, served), user=_asked(live.user, served), routes=routes)


def _asked(model: ModelSettings, served: Mapping[str, Address]) -> ModelSettings:
    address = served.get(str(model.folder)) if model.folder else None
    return model if address is None else model.served(address.base_url, address.token)


class LocalServers:
    """The servers that a run started, one a folder."""

    def __init__(self) -> None:
        self._servers: dict[str, LocalServer] = {}
        self.addresses: dict[str, Address] = {}

    def start(self, wanted: Mapping[Path, Wanted]) -> None:
        """Start what is wanted and does not run yet; returns once all answer.

        Raises:
            ModelFolderError: a model or an adapter cannot be served.
        """
        for path, one in wanted.items():
            if str(path) not in self._servers:
                server = self._servers[str(path)] = LocalServer(path, one.adapters)
                self.addresses[str(path)] = Address(server.base_url, server.token, one.weights)

    @property
    def running(self) -> list[LocalServer]:
        """The servers."""
        return list(self._servers.values())

    def close(self) -> None:
        """End all of them."""
        for server in self._servers.values():
            server.close()
        self._servers.clear()
