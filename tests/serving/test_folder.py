"""Folders that cannot be served: one clear line each."""

import json
import math
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_trace2evolve.cli import main as cli
from pytest_trace2evolve.errors import ModelFolderError
from pytest_trace2evolve.serving.folder import check_name, folder_digest, read_adapter, read_model

Change = Callable[[Path], object]


@pytest.fixture
def base(models: Path, tmp_path: Path) -> Path:
    """A copy of the model, to be damaged."""
    return Path(shutil.copytree(models / "base", tmp_path / "base"))


@pytest.fixture
def adapter(models: Path, tmp_path: Path) -> Path:
    """A copy of an adapter, to be damaged."""
    return Path(shutil.copytree(models / "one", tmp_path / "one"))


def edit(name: str, **fields: object) -> Change:
    """Change fields of a JSON file."""

    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return change


def remove(*names: str) -> Change:
    return lambda folder: [(folder / name).unlink() for name in names]


def cut(name: str, size: int) -> Change:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def rename(name: str, new: str) -> Change:
    return lambda folder: (folder / name).rename(folder / new)


def message(read: Callable[[], object]) -> str:
    """The one line of a rejection."""
    with pytest.raises(ModelFolderError) as caught:
        read()
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 2_000
    return text


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (shutil.rmtree, "base: no such folder"),
        (remove("config.json"), "base: has no config.json: not a model's folder"),
        (cut("config.json", 20), "config.json: not valid JSON"),
        (edit("config.json", auto_map={"AutoModel": "x.Y"}), "config.json: requires custom code (auto_map)"),
        (edit("tokenizer_config.json", auto_map={"AutoTokenizer": ["x.Y", None]}), "requires custom code"),
        (remove("model.safetensors"), "base: has no weights (model.safetensors)"),
        (
            rename("model.safetensors", "pytorch_model.bin"),
            "pytorch_model.bin: pickle weights are never opened: ",
        ),
        (rename("model.safetensors", "weights.pt"), "weights.pt: pickle weights are never opened: convert"),
        (cut("model.safetensors", 4), "model.safetensors: damaged or cut off ("),
        (cut("model.safetensors", 9000), "model.safetensors: damaged or cut off ("),
        (remove("tokenizer.json"), "base: has no tokenizer (tokenizer.json)"),
        (remove("chat_template.jinja"), "base: has no chat template (chat_template.jinja)"),
        (
            edit("generation_config.json", do_sample=True, temperature=-1),
            "generation_config.json: temperature -1 is not a number from 0 to 2",
        ),
    ],
)
def test_a_model_that_cannot_be_served(base: Path, change: Change, expected: str) -> None:
    change(base)
    assert expected in message(lambda: read_model(base))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (shutil.rmtree, "adapter 'x': {path}: no such folder"),
        (remove("adapter_config.json"), "has no adapter_config.json: not an adapter's folder"),
        (edit("adapter_config.json", peft_type="IA3"), "peft_type 'IA3' is not supported; expected LORA"),
        (
            rename("adapter_model.safetensors", "adapter_model.bin"),
            "adapter_model.bin: pickle weights are never",
        ),
        (cut("adapter_model.safetensors", 3000), "adapter_model.safetensors: damaged or cut off ("),
        (
            lambda folder: (folder / "manifest.json").write_text('{"base_digest": "0123456789abcdef"}'),
            "was made for a different base than {base} (base_digest 0123456789ab…)",
        ),
    ],
)
def test_an_adapter_that_cannot_be_served(base: Path, adapter: Path, change: Change, expected: str) -> None:
    change(adapter)
    found = message(lambda: read_adapter("x", adapter, read_model(base)))
    assert expected.format(path=adapter, base=base) in found


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"r": 0}, "r: Input should be greater than or equal to 1, not 0"),
        ({"r": "4"}, "r: Input should be a valid integer, not '4'"),
        ({"r": True}, "r: Input should be a valid integer, not True"),
        ({"r": 10**9}, "r: Input should be less than or equal to 65536, not 1000000000"),
        ({"lora_alpha": 0}, "lora_alpha: Input should be greater than 0, not 0"),
        ({"lora_alpha": math.nan}, "not valid JSON with finite numbers"),
        ({"lora_alpha": None}, "lora_alpha: Input should be a valid number, not None"),
        ({"rank_pattern": {"q_proj": 0}}, "rank_pattern.q_proj: Input should be greater than or equal to 1"),
        ({"rank_pattern": [1]}, "rank_pattern: Input should be a valid dictionary"),
        ({"alpha_pattern": {"q_proj": "x"}}, "alpha_pattern.q_proj: Input should be a valid number, not 'x'"),
        ({"bias": "all"}, "bias: Input should be 'none', not 'all'"),
        ({"target_modules": None}, "target_modules: must be a list, not None"),
        ({"target_modules": []}, "target_modules: Value should have at least 1 item"),
        ({"target_modules": ["q_proj", 5]}, "target_modules.1: Input should be a valid string, not 5"),
    ],
    ids=str,
)
def test_adapter_settings_that_would_change_the_base(
    models: Path, adapter: Path, settings: dict[str, Any], expected: str
) -> None:
    edit("adapter_config.json", **settings)(adapter)
    assert expected in message(lambda: read_adapter("x", adapter, read_model(models / "base")))


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "a/../b",
        "/etc",
        "a//b",
        "a\\b",
        "a\nb",
        "\x1b[31mb",
        " a",
        "\u202eb",
        "a" * 201,
    ],
    ids=ascii,
)
def test_a_name_that_is_a_path_or_steers_a_terminal_is_rejected(name: str) -> None:
    found = message(lambda: check_name("adapter", name))
    assert found.startswith("adapter ")
    assert ": not a valid name: expected at most 200 printable characters" in found


def test_serve_rejects_bad_options_in_one_line(
    models: Path, adapter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = models / "base"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for arguments, expected in (
            (["--adapter", "x"], "--adapter x: expected NAME=PATH"),
            (["--adapter", f"base={adapter}"], "adapter 'base' has the same name as the model"),
            (["--adapter", f"../x={adapter}"], "not a valid name: expected at most 200 printable characters"),
            (["--port", "70000"], "--port 70000: must be between 0 and 65535"),
            (["--port", port], f"--port {port}: cannot listen on this address: Address already in use"),
            (["--no-token", "--host", "0.0.0.0"], "without a token, the host must be a loopback address"),
            (["-ot2e_batch_size=0"], "t2e_batch_size: '0' is not a whole number of 1 or more"),
            (["--host", "no.such.host.invalid"], "cannot listen on this address: "),
            (["--host", "a..b"], "--host a..b --port 0: cannot listen on this address: "),
            (["-ot2e_device=nonsense"], "device nonsense: torch cannot use this device"),
            (
                ["--adapter", "x=~nobody-here/x"],
                "~nobody-here/x: no such folder: this machine does not know that user",
            ),
        ):
            assert cli.main(["serve", str(base), *arguments]) == 2
            captured = capsys.readouterr()
            (line,) = captured.err.splitlines()
            assert expected in line
            assert "\x1b" not in line
            assert captured.out == ""


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


@pytest.mark.parametrize("pattern", ["(.+)+!", "(a|b)*c", ".*" * 5 + "!", "x" * 501])
@pytest.mark.parametrize("field", ["target_modules", "exclude_modules", "layers_pattern", "rank_pattern"])
def test_patterns_of_an_adapter_end(base: Path, adapter: Path, field: str, pattern: str) -> None:
    config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
    config[field] = {pattern: 4} if field == "rank_pattern" else pattern
    (adapter / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(ModelFolderError, match="a pattern may have at most 500 characters and 4 repetitions"):
        read_adapter("tiny", adapter, read_model(base))
