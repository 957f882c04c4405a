"""Models in folders of this machine: what the options name, and the addresses of the servers that answer.

One process of a run starts the servers, before any worker: all share one copy of the weights, and one path of
code, the API's client. Evidence and keys hold a digest of the folder; an address changes with each run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.serving.folder import CONFIG, ModelFolder, folder_digest, read_adapter, read_model
from pytest_trace2evolve.serving.process import LocalServer
from pytest_trace2evolve.workflow.planning.live import LiveSettings
from pytest_trace2evolve.workflow.planning.plan import Plan

_SIGNS = ("./", "../", "/", "~")
"""How a path begins that no name of a model is taken for."""


@dataclass(frozen=True)
class Address:
    """Where a folder's model is asked, with which token, and the folder's digest."""

    base_url: str
    token: str = field(repr=False)
    weights: str


def names_folder(model: str, here: Path) -> bool:
    """Whether a model is named by its folder: as a path, or by the name of one that is there."""
    return model.startswith(_SIGNS) or model in (".", "..") or (here / model / CONFIG).is_file()


def model_folder(model: str, here: Path, served: Mapping[str, Address]) -> tuple[ModelFolder, str]:
    """A model's folder and its digest.

    Raises:
        ModelFolderError: it cannot be served.
    """
    path = (here / Path(model).expanduser()).resolve()
    known = served.get(str(path))
    return read_model(path), folder_digest(path) if known is None else known.weights


def at_servers(plan: Plan, served: Mapping[str, Address]) -> Plan:
    """The same plan, its local models asked where they are served."""
    confirm = plan.confirm
    if confirm is not None:
        sides = {
            suite: replace(party, live=_placed(party.live, served)) for suite, party in confirm.sides.items()
        }
        confirm = replace(confirm, sides=sides)
    return replace(plan, live=_placed(plan.live, served), confirm=confirm)


def folders(plan: Plan) -> dict[Path, str]:
    """The folders whose models a run asks, with their digests."""
    asked = [model for live in plan.everyone for model in (live.agent, live.user)]
    return {model.folder: model.weights for model in asked if model.folder and model.weights}


def _placed(live: LiveSettings | None, served: Mapping[str, Address]) -> LiveSettings | None:
    if live is None:
        return None
    return replace(live, agent=_asked(live.agent, served), user=_asked(live.user, served))


def _asked(model: ModelSettings, served: Mapping[str, Address]) -> ModelSettings:
    address = served.get(str(model.folder)) if model.folder else None
    return model if address is None else model.served(address.base_url, address.token)


class LocalServers:
    """The servers that a run started, one a folder."""

    def __init__(self) -> None:
        self._servers: dict[str, LocalServer] = {}
        self.addresses: dict[str, Address] = {}

    def start(self, wanted: Mapping[Path, str], adapters: Mapping[str, Path]) -> None:
        """Start what is wanted and does not run yet; returns once all answer.

        Args:
            wanted: Folders of models, with their digests.
            adapters: Folders of adapters by name, for the first of the models.

        Raises:
            ModelFolderError: a model or an adapter cannot be served.
        """
        for number, (path, weights) in enumerate(wanted.items()):
            if str(path) in self._servers:
                continue
            own = adapters if number == 0 else {}
            for name, place in own.items():
                read_adapter(name, place, read_model(path))
            server = self._servers[str(path)] = LocalServer(path, own)
            self.addresses[str(path)] = Address(server.base_url, server.token, weights)

    @property
    def running(self) -> list[LocalServer]:
        """The servers."""
        return list(self._servers.values())

    def close(self) -> None:
        """End all of them."""
        for server in self._servers.values():
            server.close()
        self._servers.clear()
