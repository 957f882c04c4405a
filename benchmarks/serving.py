"""Requests and tokens per second of the local server, for one client and for many, and its memory.

python benchmarks/serving.py [--model FOLDER] [--turns 6] [--tokens 32] [--requests 1000]

Clients hold conversations: a prompt of about 250 tokens, and with each turn a message of about 30 more.
Without `--model` the weights are random: 1.1 million parameters in Qwen3's architecture, with two adapters,
each of which answers every third conversation.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pytest_trace2evolve.serving.process import LocalServer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


class Client:
    """One connection, with so little code that its cost does not count in the server's figures."""

    def __init__(self, server: LocalServer) -> None:
        self._at = urlsplit(server.base_url)
        self._token = server.token
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, body: dict[str, Any]) -> dict[str, Any]:
        """One chat completion."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._at.hostname, self._at.port)
        reader, writer = self._streams
        raw = json.dumps(body).encode()
        head = (
            f"POST {self._at.path}/chat/completions HTTP/1.1\r\nHost: {self._at.netloc}\r\n"
            f"Authorization: Bearer {self._token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(raw)}\r\n\r\n"
        )
        writer.write(head.encode() + raw)
        headers = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(headers.partition("content-length:")[2].split("\r\n")[0])
        answer: dict[str, Any] = json.loads(await reader.readexactly(length))
        if "error" in answer:
            raise RuntimeError(answer["error"]["message"])
        return answer

    def close(self) -> None:
        """Close it."""
        if self._streams is not None:
            self._streams[1].close()


async def conversation(client: Client, model: str, number: int, turns: int, tokens: int) -> int:
    """One conversation; returns the number of tokens that were drawn."""
    rules = " ".join(f"Look at W{place} and close it, all is well." for place in range(14))
    messages: list[dict[str, Any]] = [{"role": "system", "content": rules}]
    drawn = 0
    for turn in range(turns):
        messages.append({"role": "user", "content": f"W{number} is open. " * 3 + f"Turn {turn}."})
        body = {"model": model, "messages": messages, "seed": number, "max_tokens": tokens}
        answer = await client.post(body)
        messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        drawn += answer["usage"]["completion_tokens"]
    return drawn


async def load(
    server: LocalServer, models: list[str], clients: int, conversations: int, turns: int, tokens: int
) -> tuple[float, int]:
    """Seconds and tokens of conversations, `clients` at once."""
    numbers = iter(range(conversations))

    async def client_tokens() -> int:
        client, drawn = Client(server), 0
        for number in numbers:
            drawn += await conversation(client, models[number % len(models)], number, turns, tokens)
        client.close()
        return drawn

    started = time.perf_counter()
    drawn = sum(await asyncio.gather(*(client_tokens() for _ in range(clients))))
    return time.perf_counter() - started, drawn


def memory(pid: int) -> float:
    """Resident memory of a process, in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / (1 << 20)


def random_model(folder: Path) -> tuple[Path, dict[str, Path]]:
    """A model of random weights in the size of the embedded one, and two adapters."""
    from tests.tiny_model import build_adapter, build_model

    sizes = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 5, "head_dim": 32}
    base = build_model(folder / "base", steps=0, **sizes, max_position_embeddings=2048)
    names = ("one", "two")
    return base, {name: build_adapter(base, folder / name, seed=place) for place, name in enumerate(names)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, help="a model's folder (default: random weights)")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=32, help="tokens of an answer at most")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--conversations", type=int, default=2, help="of each client")
    parser.add_argument("--requests", type=int, default=1000, help="of the check of memory; 0: none")
    parser.add_argument("--serve", nargs=argparse.REMAINDER, default=[], help="further options of the server")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder, adapters = options.model, {}
        if folder is None:
            folder, adapters = random_model(Path(scratch))
        server = LocalServer(folder, adapters, options=options.serve)
        models = [folder.resolve().name, *adapters]
        try:
            measure(server, models, options)
        finally:
            server.close()


def measure(server: LocalServer, models: list[str], options: argparse.Namespace) -> None:
    """Print the table."""
    shape = options.turns, options.tokens
    asyncio.run(load(server, models, 4, 8, *shape))
    print(f"{'clients':>7} {'requests/s':>11} {'tokens/s':>9} {'times one':>9}")
    first = 0.0
    for clients in options.clients:
        count = max(6, clients * options.conversations)
        seconds, drawn = asyncio.run(load(server, models, clients, count, *shape))
        rate = count * options.turns / seconds
        first = first or rate
        print(f"{clients:>7} {rate:>11.1f} {drawn / seconds:>9.0f} {rate / first:>9.1f}")
    if options.requests:
        before = memory(server.pid)
        asyncio.run(load(server, models, 16, options.requests // options.turns + 1, *shape))
        print(f"memory: {before:.0f} MiB, after {options.requests} requests {memory(server.pid):.0f} MiB")


if __name__ == "__main__":
    main()
