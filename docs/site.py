"""Prepares the pages of the documentation site (`make docs`): copies, the Python reference and llms.txt.

    python docs/site.py FOLDER

The copies keep their places in the repository, so their links stay valid.
"""

import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATTERNS = ("*.md", "*/**/*.md", "LICENSE", "action.yml", "docs/pictures/*", "docs/examples/**/*")
LEFT_OUT = {"build", ".venv", ".git", ".trace2evolve", "tests", "src", "node_modules"}


def api_page() -> str:
    """The page of the public modules, which docs/extending.md lists."""
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `pytest_trace2evolve")]
    modules = dict.fromkeys(re.findall(r"`(pytest_trace2evolve[.\w]*)`", "\n".join(rows)))
    names = [name for name in modules if name != "pytest_trace2evolve.records"]
    return "# Python reference\n\n" + "\n\n".join(f"::: {name}" for name in names) + "\n"


def llms_text() -> str:
    """The list of pages for language models, from docs/index.md."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    summary = next(line for line in readme.splitlines() if line and not line.startswith(("#", "[", "!", "<")))
    sections = index.partition("## Glossary")[0].partition("## ")[2]
    links = re.sub(r"\]\((?!\.\.|#)", "](docs/", f"## {sections}").replace("](../", "](")
    return f"# pytest-trace2evolve\n\n> {summary}\n\n{links.replace('](#', '](docs/index.md#')}"


def main(folder: Path) -> None:
    """Write the pages to a folder."""
    for path in sorted({path for pattern in PATTERNS for path in ROOT.glob(pattern) if path.is_file()}):
        place = path.relative_to(ROOT)
        if not LEFT_OUT & set(place.parts):
            (folder / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / place)
    (folder / "docs" / "api.md").write_text(api_page(), encoding="utf-8")
    (folder / "llms.txt").write_text(llms_text(), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
