"""Check that no subpackage has more lines than its budget in `rooms.toml`, so that growth is a decision.

python .ci/rooms.py          # status 1 if a subpackage is over its budget
python .ci/rooms.py --lower  # lower each budget to the present number of lines
"""

import sys
import tomllib
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "pytest_trace2evolve"
FILE = Path(__file__).with_suffix(".toml")


def counts() -> Counter[str]:
    """Lines of each subpackage; modules outside them count as `package`."""
    lines: Counter[str] = Counter()
    for path in PACKAGE.rglob("*.py"):
        room = path.relative_to(PACKAGE).parts[0] if path.parent != PACKAGE else "package"
        lines[room] += path.read_text(encoding="utf-8").count("\n")
    return lines


def main() -> int:
    """Compare, or lower the budgets; returns the exit status."""
    text = FILE.read_text(encoding="utf-8")
    budgets, lines = tomllib.loads(text), counts()
    if "--lower" in sys.argv[1:]:
        head = "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))
        lowered = {room: min(lines[room], budgets.get(room, lines[room])) for room in sorted(lines)}
        FILE.write_text(head + "".join(f"{room} = {n}\n" for room, n in lowered.items()), encoding="utf-8")
        return 0
    over = {room: n for room, n in sorted(lines.items()) if n > budgets.get(room, 0)}
    for room, n in over.items():
        print(f"{room}: {n} lines, but {FILE.name} allows {budgets.get(room, 0)}; delete as much as you add")
    return int(bool(over))


if __name__ == "__main__":
    sys.exit(main())
