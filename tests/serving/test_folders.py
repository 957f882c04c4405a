"""Folders that cannot be served: one clear line each, and exit status 2."""

import json
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_trace2evolve import cli
from pytest_trace2evolve.serving.folder import folder_digest, read_model

Change = Callable[[Path], object]


@pytest.fixture
def base(models: Path, tmp_path: Path) -> Path:
    """A copy of the model, to be damaged."""
    return Path(shutil.copytree(models / "base", tmp_path / "base"))


@pytest.fixture
def adapter(models: Path, tmp_path: Path) -> Path:
    """A copy of an adapter."""
    return Path(shutil.copytree(models / "one", tmp_path / "one"))


def edit(name: str, **fields: object) -> Change:
    """Change fields of a JSON file."""

    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return change


def remove(*names: str) -> Change:
    """Delete files."""
    return lambda folder: [(folder / name).unlink() for name in names]


def cut(name: str, keep: int) -> Change:
    """Cut a file off."""
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:keep])


def rename(name: str, new: str) -> Change:
    """Give a file another name."""
    return lambda folder: (folder / name).rename(folder / new)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a server that does not start."""
    assert cli.main(["serve", *arguments]) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    assert captured.out == ""
    return line


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (shutil.rmtree, "base: no such folder"),
        (remove("config.json"), "base: holds no config.json: not a model's folder"),
        (cut("config.json", 20), "config.json: not valid JSON"),
        (edit("config.json", auto_map={"AutoModel": "x.Y"}), "config.json: names custom code (auto_map)"),
        (edit("tokenizer_config.json", auto_map={"AutoTokenizer": ["x.Y", None]}), "names custom code"),
        (remove("model.safetensors"), "base: holds no weights (model.safetensors)"),
        (
            rename("model.safetensors", "pytorch_model.bin"),
            "pytorch_model.bin: pickle weights are never opened: ",
        ),
        (
            rename("model.safetensors", "weights.pt"),
            "weights.pt: pickle weights are never opened: convert them",
        ),
        (cut("model.safetensors", 4), "model.safetensors: damaged: it is cut off, or no safetensors file"),
        (cut("model.safetensors", 9000), "bytes of tensors were written and"),
        (remove("tokenizer.json"), "base: holds no tokenizer (tokenizer.json)"),
        (remove("chat_template.jinja"), "base: holds no chat template (chat_template.jinja)"),
        (
            edit("generation_config.json", do_sample=True, temperature=-1),
            "generation_config.json: temperature -1 is not a number from 0 to 2",
        ),
    ],
)
def test_a_model(base: Path, change: Change, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    change(base)
    assert told in refused(capsys, str(base))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (shutil.rmtree, "adapter 'x': {path}: no such folder"),
        (remove("adapter_config.json"), "holds no adapter_config.json: not an adapter's folder"),
        (edit("adapter_config.json", peft_type="IA3"), "peft_type 'IA3' is not served; only LORA is"),
        (
            rename("adapter_model.safetensors", "adapter_model.bin"),
            "adapter_model.bin: pickle weights are never",
        ),
        (cut("adapter_model.safetensors", 3000), "adapter_model.safetensors: damaged"),
        (
            lambda folder: (folder / "manifest.json").write_text('{"base_digest": "0123456789abcdef"}'),
            "was made for another base than {base} (base_digest 0123456789ab…)",
        ),
    ],
)
def test_an_adapter(
    base: Path, adapter: Path, change: Change, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(adapter)
    line = refused(capsys, str(base), "--adapter", f"x={adapter}")
    assert told.format(path=adapter, base=base) in line


def test_an_adapter_of_another_width(base: Path, adapter: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = (adapter / "adapter_model.safetensors").read_bytes()
    length = int.from_bytes(weights[:8], "little")
    header = json.loads(weights[8 : 8 + length])
    for name, one in header.items():
        if "lora_A" in name and "q_proj" in name:
            one["shape"] = one["shape"][::-1]
    text = json.dumps(header).encode()
    (adapter / "adapter_model.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + weights[8 + length :]
    )
    line = refused(capsys, str(base), "--adapter", f"x={adapter}")
    assert f"adapter 'x': {adapter} was made for another base than {base}: layer" in line
    assert "is 32 wide there and 4 in the adapter" in line


def test_names_and_addresses(base: Path, adapter: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, told in (
        (["--adapter", "x"], "--adapter x: must be NAME=PATH"),
        (["--adapter", f"base={adapter}"], "adapter 'base' has the name of the model itself"),
        (["--adapter", f"x={adapter}", "--name", "x"], "--name x: an adapter has that name too"),
        (["--port", "70000"], "--port 70000: must be from 0 to 65535"),
        (["--no-token", "--host", "0.0.0.0"], "only loopback is served without a token"),
        (["--token", "a b"], "--token and TRACE2EVOLVE_TOKEN take printable ASCII"),
        (["--rows", "0"], "--rows 0: must be 1 or more"),
        (["--host", "no.such.host.invalid"], "no address to listen on"),
        (["--host", "a..b"], "--host a..b --port 0: no address to listen on"),
        (["--device", "nonsense"], "--device nonsense: torch cannot use it here"),
        (
            ["--adapter", "x=~nobody-here/x"],
            "~nobody-here/x: no such folder: nobody here has that home folder",
        ),
    ):
        assert told in refused(capsys, str(base), *arguments)


def test_a_port_that_is_taken(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        line = refused(capsys, str(base), "--port", port)
    assert f"--port {port}: is taken: choose another, or 0 for a free one" in line


def test_the_digest_is_of_what_can_change_an_answer(base: Path) -> None:
    first = folder_digest(base)
    (base / "README.md").write_text("words")
    assert folder_digest(base) == first
    for change in (
        edit("config.json", rope_theta=5.0),
        edit("generation_config.json", do_sample=True),
        lambda folder: (folder / "chat_template.jinja").write_text("x"),
    ):
        change(base)
        assert folder_digest(base) != first
        first = folder_digest(base)


def test_a_models_own_settings_name_its_temperature(base: Path) -> None:
    settings = base / "generation_config.json"
    for text, temperature in (("{}", 0.0), ('{"do_sample": true}', 1.0), ('{"temperature": 0.7}', 0.0)):
        settings.write_text(text)
        assert read_model(base).temperature == temperature
    settings.write_text('{"do_sample": true, "temperature": 0.7}')
    assert read_model(base).temperature == 0.7
