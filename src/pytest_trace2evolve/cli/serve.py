"""`trace2evolve serve`: an OpenAI-compatible endpoint over a model folder."""

import argparse
import os
import secrets
from pathlib import Path
from typing import Any

from pytest_trace2evolve.cli.common import at_least
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.utils.option_types import integer


def add_serve(commands: Any) -> None:
    """Declare the command."""
    serve = commands.add_parser("serve", help="an OpenAI-compatible endpoint over a model folder")
    serve.add_argument(
        "model", type=Path, metavar="MODEL", help="a folder with config, weights and tokenizer"
    )
    serve.add_argument(
        "--adapter",
        action="append",
        metavar="NAME=PATH",
        help="a LoRA adapter, asked for by NAME (repeatable)",
    )
    serve.add_argument("--name", help="the model's name (default: its folder's)")
    serve.add_argument("--host", default="127.0.0.1", help="(default: 127.0.0.1)")
    serve.add_argument("--port", type=integer, default=0, metavar="N", help="(default: a free one)")
    key = serve.add_mutually_exclusive_group()
    key.add_argument(
        "--token",
        help="what requests must bring (default: TRACE2EVOLVE_TOKEN, else a random one that is printed)",
    )
    key.add_argument("--no-token", action="store_true", help="serve whoever reaches the address")
    serve.add_argument("--device", help="as torch names it (default: cuda where there is one, else cpu)")
    serve.add_argument("--dtype", help="as torch names it (default: float32 on cpu, else as stored)")
    serve.add_argument(
        "--threads",
        type=integer,
        metavar="N",
        help="threads of torch (default: 1 for small models on cpu, else its own)",
    )
    serve.add_argument(
        "--rows", type=integer, default=64, metavar="N", help="requests decoded together (default: 64)"
    )
    serve.add_argument(
        "--waiting", type=integer, default=1024, metavar="N", help="requests that may wait (default: 1024)"
    )
    serve.add_argument(
        "--prefix-cache",
        type=integer,
        default=256,
        metavar="MIB",
        help="memory for what earlier prompts began with (default: 256; 0: none)",
    )
    serve.add_argument("--parent-pipe", action="store_true", help="end when standard input closes")
    serve.set_defaults(command=_serve)


def _serve(options: argparse.Namespace) -> int:
    from pytest_trace2evolve.serving.folder import read_adapter, read_model, require_name
    from pytest_trace2evolve.serving.server import ServerSettings, serve

    folder = read_model(options.model)
    adapters = [read_adapter(name, path, folder) for name, path in _named_paths(options.adapter)]
    name = options.name or folder.name
    require_name("model", name)
    if name in [one.name for one in adapters]:
        raise ConfigError(f"--name {name}: an adapter has that name too")
    if not 0 <= options.port <= 65535:
        raise ConfigError(f"--port {options.port}: must be from 0 to 65535")
    return serve(
        ServerSettings(
            folder=folder,
            adapters=adapters,
            name=name,
            host=options.host,
            port=options.port,
            token=_token(options),
            device=options.device,
            dtype=options.dtype,
            threads=None if options.threads is None else at_least("--threads", options.threads, 1, 1024),
            rows=at_least("--rows", options.rows, 1, 4096),
            waiting=at_least("--waiting", options.waiting, 1, 100000),
            prefix_bytes=at_least("--prefix-cache", options.prefix_cache, 0) << 20,
            parent_pipe=options.parent_pipe,
        )
    )


def _named_paths(given: list[str] | None) -> list[tuple[str, Path]]:
    """Values of the form NAME=PATH.

    Raises:
        ConfigError: one has another form, or two have one name.
    """
    pairs: list[tuple[str, Path]] = []
    for text in given or ():
        name, sign, path = text.partition("=")
        if not (name.strip() and sign and path):
            raise ConfigError(f"--adapter {text}: must be NAME=PATH")
        if name in [one for one, _ in pairs]:
            raise ConfigError(f"--adapter {text}: the name {name!r} is given twice")
        pairs.append((name, Path(path)))
    return pairs


def _token(options: argparse.Namespace) -> str | None:
    """What requests must bring.

    Raises:
        ConfigError: it could not be sent as it is, or none is wanted where anybody could reach the server.
    """
    from pytest_trace2evolve.serving.process import LOOPBACK, TOKEN_VAR

    if options.no_token:
        if options.host not in LOOPBACK:
            raise ConfigError(f"--no-token --host {options.host}: only loopback is served without a token")
        return None
    token = os.environ.get(TOKEN_VAR) if options.token is None else options.token
    if token is None:
        return secrets.token_urlsafe(24)
    if not token or not token.isascii() or any(one.isspace() or not one.isprintable() for one in token):
        raise ConfigError(f"--token and {TOKEN_VAR} take printable ASCII without spaces")
    return token
