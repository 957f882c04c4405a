"""Models in folders of this machine: what the options name, and the addresses of the servers that answer.

One process of a run starts the servers, before any worker: all share one copy of the weights, and one path of
code, the API's client. Evidence and keys hold a digest of the folder; an address changes with each run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.serving.folder import (
    CONFIG,
    ModelFolder,
    expanded,
    folder_digest,
    read_adapter,
    read_model,
)
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
    path = (here / expanded(Path(model))).resolve()
    known = served.get(str(path))
    return read_model(path), folder_digest(path) if known is None else known.weights


def adapted(model: ModelSettings, adapter: str, here: Path) -> ModelSettings:
    """A folder's model that talks with an adapter: named after both, with the digests of both.

    Raises:
        ModelFolderError: it cannot be served with that model.
    """
    assert model.folder is not None
    path = (here / expanded(Path(adapter))).resolve()
    name = f"{model.model}+{path.name}"
    read_adapter(name, path, read_model(model.folder))
    return replace(model, model=name, adapter=path, weights=f"{model.weights}+{folder_digest(path)}")


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
    for model in (model for live in plan.everyone for model in (live.agent, live.user)):
        if model.folder is not None:
            wanted = found.setdefault(model.folder, Wanted(model.base_weights))
            if model.adapter is not None:
                wanted.adapters[model.model] = model.adapter
    return found


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
