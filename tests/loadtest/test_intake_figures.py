"""The benchmark of the intake: that it does the work that it claims to measure."""

from __future__ import annotations

from pathlib import Path

from loadtest.intake_figures import BATCH, SINGLES, STAGES, IntakeBench, intake_table

MEMBERS = 50


def test_each_event_is_counted_once(tmp_path: Path) -> None:
    """A round submits a batch and single events, and what is sent again changes nothing."""
    bench = IntakeBench(tmp_path / "b", MEMBERS)
    before = bench.host.board.sequence
    bench.round()
    bench.round()
    assert bench.host.board.sequence == before + 2 * (BATCH + SINGLES)
    assert len(bench.host.board.members) == MEMBERS
    bench.host.close()
    rounds = {len(times) for taken in bench.figures.values() for times in taken.values()}
    assert (len(bench.figures), rounds) == (4, {2})


def test_the_table_has_a_figure_for_each_stage() -> None:
    """Each kind of work is a row, with a number for each stage and their sum."""
    head, _, *rows = intake_table(MEMBERS, rounds=1).splitlines()
    assert [cell.strip() for cell in head.split("|")[2:-2]] == list(STAGES)
    assert len(rows) == 4
    for row in rows:
        cells = [float(cell) for cell in row.split("|")[2:-1]]
        assert len(cells) == len(STAGES) + 1
        assert all(cell >= 0 for cell in cells)
