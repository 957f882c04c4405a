"""An unused plugin is not there: no import, no file, no output."""

import pytest

PROBE = """\
import sys

import pytest

pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]])
loaded = sorted(name for name in sys.modules if name.startswith("pytest_trace2evolve"))
print("ours:", loaded)
print("heavy:", sorted({"pydantic", "openai", "scipy", "rich.console", "inspect_ai"} & set(sys.modules)))
"""


def test_an_idle_plugin_imports_its_options_alone_and_prints_and_writes_nothing(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that asks for nothing of ours, in a process of its own."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makepyfile(test_own="def test_own(): pass")
    probe = pytester.path / "probe.py"
    probe.write_text(PROBE)
    idle = pytester.runpython(probe)
    plugin = ["", ".plugin", ".plugin.hookspecs", ".plugin.options"]
    ours = [*plugin, ".session", ".session.option_table", ".utils", ".utils.option_types"]
    assert f"ours: {[f'pytest_trace2evolve{name}' for name in ours]}" in idle.outlines
    assert "heavy: []" in idle.outlines
    assert "trace2evolve:" not in idle.stdout.str().replace("ours: ['pytest_trace2evolve", "")
    names = {path.name for path in pytester.path.iterdir()} - {"__pycache__", "probe.py", "test_own.py"}
    assert {name for name in names if not name.startswith(("stdout", "stderr"))} == set()
