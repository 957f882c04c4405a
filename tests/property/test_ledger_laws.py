"""Laws of the ledger: no single damage goes unseen, and no order of writing or merging changes an answer."""

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_trace2evolve.evidence.ledger import Ledger, render
from pytest_trace2evolve.gate.labels import SealedSplit, label_of
from pytest_trace2evolve.gate.looks import Claim, look_of
from pytest_trace2evolve.records.ledger import Dated, Evaluation
from pytest_trace2evolve.records.verdict import Goal, Label
from tests.ledger_helpers import ROOT, at, judged, seen
from tests.unit.test_labels import Made

NOW = at(days=30)
ON_DISK = settings(max_examples=40)


@st.composite
def ledgers(draw: st.DrawFn) -> list[Dated]:
    """Entries whose parents are any of those before them: chains, branches and merges."""
    entries: list[Dated] = []
    for number in range(draw(st.integers(1, 7))):
        known = [entry.name for entry in entries]
        wanted = draw(st.lists(st.sampled_from(known), max_size=3, unique=True)) if known else []
        parents = tuple(sorted(wanted or [ROOT.name]))
        moment = at(number, days=draw(st.integers(0, 1)) if not known else 0)
        moment = max([moment, *(at(0.001) - at() + entry.at for entry in entries if entry.name in wanted)])
        if draw(st.booleans()):
            task = draw(st.sampled_from(["close", "other"]))
            entries.append(seen(moment, parents=parents, task=task, run=f"run-{number}"))
            continue
        entries.append(
            judged(
                moment,
                parents=parents,
                name=draw(st.sampled_from(["v1", "v2", "v3"])),
                text=draw(st.sampled_from(["text of v1", "another", "a third"])),
                run=f"run-{number}",
                look=draw(st.integers(1, 4)),
                trials=draw(st.sampled_from([1, 2, 4])),
                alpha=draw(st.sampled_from([None, 0.03])),
                goal=draw(st.sampled_from(Goal)),
                label=draw(st.sampled_from([Label.CLEAN, Label.DEVELOPMENT])),
            )
        )
    return entries


@contextmanager
def laid_down(entries: Sequence[Dated]) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        for entry in (ROOT, *entries):
            (Path(name) / f"{entry.name}.json").write_text(render(entry), encoding="utf-8")
        yield Path(name)


def problems(folder: Path) -> tuple[str, ...]:
    return Ledger(folder).read(NOW).problems


@ON_DISK
@given(ledgers())
def test_what_was_written_in_order_is_sound_and_comes_back(entries: list[Dated]) -> None:
    with laid_down(entries) as folder:
        history = Ledger(folder).read(NOW)
        assert history.problems == ()
        assert sorted(entry.name for entry in history.in_time) == sorted(entry.name for entry in entries)
        assert [entry.at for entry in history.in_time] == sorted(entry.at for entry in entries)


@ON_DISK
@given(ledgers(), st.data())
def test_any_edited_sign_is_found(entries: list[Dated], data: st.DataObject) -> None:
    with laid_down(entries) as folder:
        victim = data.draw(st.sampled_from([ROOT, *entries]))
        path = folder / f"{victim.name}.json"
        text = path.read_text(encoding="utf-8")
        place = data.draw(st.integers(0, len(text) - 1))
        sign = data.draw(st.sampled_from('0aZ" ,{}\n').filter(lambda one: one != text[place]))
        path.write_text(text[:place] + sign + text[place + 1 :], encoding="utf-8")
        assert any(line.startswith(f"{folder.name}/{path.name}: ") for line in problems(folder))


@ON_DISK
@given(ledgers(), st.data())
def test_any_changed_field_is_found(entries: list[Dated], data: st.DataObject) -> None:
    with laid_down(entries) as folder:
        path = folder / f"{data.draw(st.sampled_from(entries)).name}.json"
        record = json.loads(path.read_text(encoding="utf-8"))
        field = data.draw(st.sampled_from(sorted(record)))
        value = data.draw(
            st.sampled_from([None, "x", 7, "discard", "hold"]).filter(lambda v: v != record[field])
        )
        path.write_text(json.dumps({**record, field: value}, indent=1, sort_keys=True), encoding="utf-8")
        assert any(line.startswith(f"{folder.name}/{path.name}: ") for line in problems(folder))


@ON_DISK
@given(ledgers(), st.data())
def test_any_deleted_entry_that_others_name_is_found(entries: list[Dated], data: st.DataObject) -> None:
    with laid_down(entries) as folder:
        named = sorted({parent for entry in entries for parent in entry.parents})
        victim = data.draw(st.sampled_from(named))
        (folder / f"{victim}.json").unlink()
        (line,) = problems(folder)
        assert line.startswith(f"{folder.name}/{victim}.json: was deleted, and entry ")


@ON_DISK
@given(ledgers(), st.integers(0, 5000))
def test_any_entry_written_into_the_past_is_found(entries: list[Dated], minutes: int) -> None:
    last = max(entries, key=lambda entry: entry.at)
    late = seen(last.at - (at(minutes) - at()), parents=(last.name,), who="bob")
    with laid_down([*entries, late]) as folder:
        (line,) = problems(folder)
        assert line.startswith(f"{folder.name}/{late.name}.json: is dated ")


@ON_DISK
@given(ledgers(), st.data())
def test_any_replayed_entry_is_found(entries: list[Dated], data: st.DataObject) -> None:
    victim = data.draw(st.sampled_from(entries))
    with laid_down(entries) as folder:
        (folder / "copy.json").write_text(render(victim), encoding="utf-8")
        (line,) = problems(folder)
        assert line.startswith(f"{folder.name}/copy.json: is a copy of entry {victim.name} ")
    if not isinstance(victim, Evaluation):
        return
    again = victim.model_copy(update={"at": at(days=5), "parents": (victim.name,)})
    with laid_down([*entries, again]) as folder:
        (line,) = problems(folder)
        assert line.startswith(f"{folder.name}/{again.name}.json: records run {victim.run} on ")


@given(ledgers(), st.randoms(use_true_random=False))
def test_no_order_changes_a_look_or_a_label(entries: list[Dated], random: object) -> None:
    shuffled = list(entries)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    split = SealedSplit("desk", "heldout", "desk", {"close"})
    for day in (None, at().date(), at(days=-1).date(), at(days=1).date()):
        lineage = [Made(frozen_at=day)]
        assert label_of(lineage, split, entries) == label_of(lineage, split, shuffled)
    for text in ("text of v1", "new"):
        for trials in (1, 2, 4):
            claim = Claim("desk", "heldout", "lock-1", text, "agent", "evidence of v0", "calibrated", trials)
            assert look_of(entries, claim) == look_of(shuffled, claim)


@given(ledgers())
def test_merging_branches_only_ever_raises_the_next_look(entries: list[Dated]) -> None:
    claim = Claim("desk", "heldout", "lock-1", "new", "agent", "evidence of v0", "calibrated", 4)
    half = len(entries) // 2
    merged = look_of(entries, claim).number
    parts = [look_of(part, claim).number for part in (entries[:half], entries[half:])]
    assert max(parts) <= merged <= sum(parts) - 1


@given(ledgers(), st.sampled_from(["v1", "v2"]), st.integers(0, 5))
def test_one_more_look_never_cleans_anything(entries: list[Dated], name: str, days: int) -> None:
    split = SealedSplit("desk", "heldout", "desk", {"close"})
    lineage = [Made(name, at(days=2).date())]
    before = label_of(lineage, split, entries).label
    after = label_of(lineage, split, [*entries, seen(at(days=days))]).label
    assert after is Label.DEVELOPMENT or (before is Label.CLEAN and days > 2)
