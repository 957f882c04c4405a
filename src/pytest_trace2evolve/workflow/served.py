"""A model in a folder, served for as long as something measures it."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pytest_trace2evolve.models.settings import ModelSettings
from pytest_trace2evolve.serving.folder import ModelFolder, folder_digest
from pytest_trace2evolve.serving.process import LocalServer


@contextmanager
def served(
    base: ModelFolder,
    adapters: Mapping[str, Path] | None = None,
    *,
    seed: int | None = None,
    at_once: int = 64,
    threads: int | None = None,
) -> Iterator[ModelSettings]:
    """Serve a base and its adapters; gives how the base is asked. Adapters are asked by their names.

    Args:
        adapters: Folders, by the names under which they are asked.
        seed: Of the first answer.
        at_once: Requests at once at most.
        threads: Of the server; None leaves it to torch.

    Raises:
        ModelFolderError: the base or an adapter cannot be served.
    """
    options = () if threads is None else ("--threads", str(threads))
    server = LocalServer(base.path, adapters or {}, options)
    try:
        yield ModelSettings(
            model=base.name,
            base_url=server.base_url,
            token=server.token,
            temperature=base.temperature,
            seed=seed,
            max_connections=at_once,
            weights=folder_digest(base.path),
        )
    finally:
        server.close()
