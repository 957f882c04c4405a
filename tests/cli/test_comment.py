"""`trace2evolve comment` with a `gh` that calls a server, which plays GitHub's API."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_trace2evolve.cli.main import main
from pytest_trace2evolve.records.verdict import Decision, Goal, Label, RunSummary, SuiteSummary, Verdict
from pytest_trace2evolve.report.github import marker
from tests.fake_github import REPOSITORY, FakeGitHub, refusal
from tests.hostile import HOSTILE, alive

TOKEN = "ghs_planted0123456789"
SHA = "0123456789abcdef" * 2 + "01234567"
VERDICT = Verdict(
    decision=Decision.DISCARD,
    policy="strict",
    goal=Goal.IMPROVE,
    label=Label.CLEAN,
    suite="desk",
    split="heldout",
)
SUMMARY = RunSummary(
    candidate="v1", decision=Decision.DISCARD, suites=(SuiteSummary(name="desk", verdicts=(VERDICT,)),)
)
MARK = "<!-- trace2evolve: desk -->"


@pytest.fixture
def github(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGitHub]:
    """GitHub, and the surroundings of a job that may write to it."""
    with FakeGitHub() as fake:
        monkeypatch.setenv("PATH", f"{fake.install(tmp_path / 'bin')}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("GITHUB_TOKEN", TOKEN)
        monkeypatch.setenv("GITHUB_REPOSITORY", REPOSITORY)
        yield fake


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A summary as `--t2e-summary` writes it."""
    path = tmp_path / "summary.json"
    path.write_text(SUMMARY.model_dump_json(), encoding="utf-8")
    return str(path)


def test_a_comment_is_made_once_and_renewed_then(
    github: FakeGitHub, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["comment", file, "--pr", "7"]) == 0
    assert (
        main(["comment", file, "--pr", "7", "--sha", SHA, "--run-url", "https://github.example/run/1"]) == 0
    )
    (comment,) = github.comments[7]
    assert comment["body"].startswith(f"{MARK}\n\n## ❌ Discard: `v1` fails the gate\n")
    assert comment["body"].endswith(
        "*commit `0123456789ab` · [job and artifacts](https://github.example/run/1)*\n"
    )
    made, renewed = capsys.readouterr().out.splitlines()
    assert made == f"comment created: {comment['html_url']}"
    assert renewed == f"comment updated: {comment['html_url']}"
    assert github.tokens == {f"token {TOKEN}"}


@pytest.mark.parametrize(("login", "author"), [("", "github-actions[bot]"), ("ci-bot", "ci-bot")])
def test_nobody_elses_comment_is_touched(github: FakeGitHub, file: str, login: str, author: str) -> None:
    github.login = login
    stranger = github.add(7, f"{MARK}\nmine", login="stranger")
    quoted = github.add(7, f"> {MARK}\nlook at this", login=author)
    assert main(["comment", file, "--pr", "7"]) == 0
    assert (stranger["body"], quoted["body"]) == (f"{MARK}\nmine", f"> {MARK}\nlook at this")
    assert github.comments[7][-1]["user"]["login"] == author
    assert main(["comment", file, "--pr", "7"]) == 0
    assert len(github.comments[7]) == 3


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_token_that_may_not_write_is_told(
    github: FakeGitHub, file: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    github.plan = lambda method, path: refusal(status) if method == "POST" else None
    assert main(["comment", file, "--pr", "7"]) == 2
    assert main(["comment", file, "--pr", "7", "--best-effort"]) == 0
    printed = capsys.readouterr()
    refused, message = printed.err.splitlines()
    assert refused.startswith("trace2evolve: POST /repos/acme/agents/issues/7/comments failed: gh: ")
    assert refused.endswith(f" (HTTP {status})")
    assert message.startswith("trace2evolve: no comment: POST /repos/")
    assert message.endswith("; see the job's summary instead")
    assert printed.out == ""
    assert len([one for one in github.requests if one[0] == "POST"]) == 2


def test_a_forks_pull_request_is_found_by_branch_and_commit(
    github: FakeGitHub, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    github.pulls = [
        {"number": 5, "head": {"label": "fork:other", "sha": SHA}},
        {"number": 6, "head": {"label": "fork:main", "sha": "f" * 40}},
        {"number": 7, "head": {"label": "fork:main", "sha": SHA}},
    ]
    assert main(["comment", file, "--head", "fork:main", "--sha", SHA, "--untrusted"]) == 0
    (comment,) = github.comments[7]
    assert "**Measured by unreviewed code of the pull request.**" in comment["body"]
    assert main(["comment", file, "--head", "fork:main", "--sha", "e" * 40]) == 0
    assert "no comment: no open pull request has fork:main at eeee" in capsys.readouterr().out
    assert list(github.comments) == [7]


def test_whatever_a_strangers_summary_holds_stays_text(github: FakeGitHub, tmp_path: Path) -> None:
    names = tuple(text.encode("utf-8", "replace").decode() for text in HOSTILE)
    verdict = VERDICT.model_copy(update={"fixed": names, "reason": "\n".join(names), "policy": names[0]})
    suites = tuple(SuiteSummary(name=name, baseline=name, verdicts=(verdict,)) for name in names)
    path = tmp_path / "hostile.json"
    path.write_text(SUMMARY.model_copy(update={"suites": suites}).model_dump_json(), encoding="utf-8")
    assert main(["comment", str(path), "--pr", "7"]) == 0
    (comment,) = github.comments[7]
    first, _, rest = comment["body"].partition("\n")
    assert first == marker("+".join(sorted(names)))
    assert first.count("--") == 2
    assert len(first) < 100
    assert alive(rest) == []


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"{", "not valid JSON"),
        (b'{"candidate": "v1", "surprise": 1}', "unknown key 'surprise'; known are "),
        (b'{"candidate": "v1", "schema_version": 2}', "summary format 2 is not 1"),
        (b'{"candidate": "' + b"x" * (9 << 20) + b'"}', "is larger than 8 MiB"),
        (b'{"candidate": "\xff"}', "not valid JSON"),
    ],
)
def test_a_file_that_is_no_summary_is_refused(
    github: FakeGitHub, tmp_path: Path, content: bytes, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "summary.json"
    path.write_bytes(content)
    assert main(["comment", str(path), "--pr", "7", "--best-effort"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert text in line
    assert github.requests == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--pr", "0"], "'0' is not the number of a pull request"),
        (["--pr", "7", "--sha", "abc"], "'abc' is not a whole commit id"),
        (["--pr", "7", "--run-url", "https://a.b/)[x"], "is not the URL of a page"),
    ],
)
def test_values_of_another_form_are_usage_errors(
    file: str, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["comment", file, *arguments])
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variable", "value", "arguments", "text"),
    [
        ("GITHUB_REPOSITORY", "", ["--pr", "7"], "no repository is named; give --repo OWNER/NAME"),
        ("GITHUB_REPOSITORY", "acme/../x", ["--pr", "7"], "--repo 'acme/../x' is not OWNER/NAME"),
        ("GITHUB_TOKEN", "", ["--pr", "7"], "GITHUB_TOKEN is not set"),
        ("GITHUB_TOKEN", "x", ["--head", "a:b"], "--head needs --sha, because a branch can move"),
    ],
)
def test_what_is_missing_is_told(
    github: FakeGitHub,
    file: str,
    variable: str,
    value: str,
    arguments: list[str],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(variable, value)
    assert main(["comment", file, *arguments]) == 2
    assert text in capsys.readouterr().err
    assert github.requests == []


def test_the_token_is_never_shown(github: FakeGitHub, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    for status in (403, 500):
        github.plan = lambda method, path, status=status: refusal(status, f"bad token {TOKEN}")
        main(["comment", file, "--pr", "7"])
        main(["comment", file, "--pr", "7", "--best-effort"])
    printed = capsys.readouterr()
    assert "bad token [removed]" in printed.err
    assert TOKEN not in printed.err + printed.out


def test_a_folder_of_summaries_gets_a_comment_for_each_candidate(
    github: FakeGitHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    for name in ("v1", "v2"):
        (folder / name).mkdir(parents=True)
        text = SUMMARY.model_copy(update={"candidate": name}).model_dump_json()
        (folder / name / "summary.json").write_text(text, encoding="utf-8")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/summary.json").write_text(SUMMARY.model_dump_json(), encoding="utf-8")
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    for _ in range(2):
        assert main(["comment", str(folder), "--pr", "7", "--key", "agents"]) == 0
    first, second = github.comments[7]
    assert first["body"].startswith(f"{marker('agents/v1')}\n\n## ❌ Discard: `v1` ")
    assert second["body"].startswith(f"{marker('agents/v2')}\n\n## ❌ Discard: `v2` ")
    (tmp_path / "empty").mkdir()
    empty = ["comment", str(tmp_path / "empty"), "--pr", "7"]
    assert main([*empty, "--best-effort"]) == 0
    assert "no comment: " in capsys.readouterr().out
    assert main(empty) == 2
    assert "contains no summary; name the folder of gate --output" in capsys.readouterr().err
