"""A board of which moderators did all that they can, its exports, and what a copy must share."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from actors.logged_board import LoggedBoard
from actors.moderation import PSEUDONYM_START
from actors.questions import OpenDispute, SetProfile, Void
from node.cli import main
from node.importing_rulings import NO_REASON
from tests.actors.board_harness import SMALL, score_keys
from tests.actors.clocked_board import ClockedBoard
from tests.actors.verdicts import dispute, erase, hide, remove, settle, show, void
from tests.node.disk_boards import audit
from tests.node.fake_boards import NOW_US

FIRST_DAY, SECOND_DAY = "2025-11-28T12:00:00Z", "2025-11-29T12:00:00Z"
SHOWN, OTHER = b'{"display_name":"Cyd","extra":{"a":[0.1,9007199254740993,null]}}', b"{}"


def moderated(directory: Path) -> ClockedBoard:
    """Make a board on which moderators did all that they can, over two days.

    Three members were erased; the names of two are still on disk.
    """
    board = ClockedBoard(
        directory, FIRST_DAY, aggregation="sum", periods=["all_time", "daily"],
        score=score_keys("desc1", "asc0"), key_retention_days=None, grace_seconds=0,
    )  # fmt: skip
    sequences = {
        member: [board.send([number, 2], member=member)["sequence"] for number in (10.5, 3, -1)]
        for member in ("ada", "bob", "cyd", "dan", "zed", "yan")
    }
    void(board, sequences["ada"][0])
    hide(board, "bob")
    hide(board, "eve")
    profile(board, "cyd", SHOWN)
    first = dispute(board, sequences["cyd"][0])
    remove(board, "dan")
    board.send([7, 7], member="dan")
    board.at(SECOND_DAY)
    profile(board, "cyd", OTHER)
    profile(board, "cyd", SHOWN)
    settle(board, first, "rejected")
    again = dispute(board, sequences["cyd"][0])
    assert again != first
    settle(board, dispute(board, sequences["bob"][1]), "upheld")
    board.send([5, 5], FIRST_DAY.replace("28", "29"), member="bob")
    show(board, "bob")
    hide(board, "bob")
    remove(board, "dan")
    board.send([2.5, 1], member="dan", source="server-1")
    forget(board, sequences)
    board.at(NOW_US)
    return board


def profile(board: ClockedBoard, member: str, text: bytes) -> None:
    """Set a profile as the call does, which names nobody."""
    board.rule(SetProfile(False, board.now_us, "", "", None, member, text))


def forget(board: ClockedBoard, sequences: dict[str, list[int]]) -> None:
    """Moderate zed, yan and nil, who never plays, and erase them; only zed's name is gone then."""
    profile(board, "zed", SHOWN)
    void(board, sequences["zed"][2])
    for reason, status in (("too fast", "rejected"), ("too high", "upheld")):
        verdict = OpenDispute(False, board.now_us, "ref", reason, None, sequences["zed"][0])
        settle(board, board.rule(verdict).sequence, status)
    told = ("zed", "helped zed, or yan", "key-1")
    board.rule(Void(False, board.now_us, *told, sequences["cyd"][1]))
    erase(board, "zed")
    board.host.erase_names(board.now_us)
    void(board, sequences["yan"][1])
    hide(board, "yan")
    board.send([4, 4], member="yan")
    profile(board, "nil", OTHER)
    erase(board, "yan", "yan asked")
    erase(board, "nil")


def exported(board: ClockedBoard) -> list[bytes]:
    """Export a board as the command does; one process has a log open but once."""
    with put_away(board):
        data = board.directory.parent.parent
        ran = CliRunner().invoke(main, ["export", "b", "--data", str(data)])
    assert ran.exit_code == 0, ran.output
    return ran.stdout_bytes.splitlines(keepends=True)


@contextlib.contextmanager
def put_away(board: ClockedBoard) -> Iterator[None]:
    """Leave a board's files to somebody else for a while."""
    board.host.close()
    try:
        yield
    finally:
        board.host = LoggedBoard.open(board.directory, SMALL)


def is_ruling(line: bytes) -> bool:
    return line.startswith(b'{"moderation":')


def rulings_of(lines: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(line)["moderation"] for line in lines if is_ruling(line)]


def shown_audit(board: ClockedBoard) -> list[tuple[str, str, str, str]]:
    """List what an import can bring back of an audit, newest first."""
    shown = []
    for item in audit(board.host):
        forgotten = item.action == "profile" and item.member.startswith(PSEUDONYM_START)
        if item.action not in ("erase", "erased") and not forgotten:
            reason = "" if item.reason.startswith(NO_REASON) else item.reason
            shown.append((item.action, item.actor, reason, item.member))
    return shown


def state(board: ClockedBoard) -> dict[str, Any]:
    """Give what must be equal of two boards of equal events and rulings."""
    rulings, members = board.host.board.rulings, board.host.board.members
    disputes = sorted(rulings.disputes.items())
    # Who was erased and never played is hidden no more; a pseudonym that nobody has hurts nobody.
    nobody = [
        name
        for name in rulings.hidden
        if name.decode().startswith(PSEUDONYM_START) and members.find(name) < 0
    ]
    return {
        "rankings": {
            each: (board.digest(each), board.top(each)["entries"]) for each in board.ids()
        },
        "hidden": sorted(set(rulings.hidden) - set(nobody)),
        "profiles": sorted(rulings.profiles.items()),
        "disputes": [(each.member, each.status, each.opened_by) for _, each in disputes],
        "voided": len(rulings.voided),
        "audit": shown_audit(board),
    }
