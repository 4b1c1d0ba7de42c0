"""A board as a pure function of its records: order of arrival, digests, copies, what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.board import Board
from actors.questions import Digest, Top
from persistence.records import DefinitionRecord, EventsRecord, WindowOpenedRecord
from tests.actors.board_harness import (
    DAY_US,
    NOW_US,
    MemoryBoard,
    ask,
    at,
    define,
    event,
    replayed,
    score_keys,
    statuses,
    submit,
)


def loaded(board: Board) -> Board:
    """Copy a board by way of what a snapshot holds."""
    header, columns = board.dump()
    return Board.load(header, {name: memoryview(bytes(column)) for name, column in columns})


def some_board(**fields: Any) -> MemoryBoard:
    host = MemoryBoard(define(**fields))
    statuses(host, event("ada", 3, "j"), event("bo", 5, "k"), event("ada", 4, "l", source="s"))
    return host


# Purity

orders = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(-2, 2), st.integers(0, 4)),
    min_size=1,
    max_size=12,
).flatmap(lambda events: st.tuples(st.permutations(list(enumerate(events))), st.just(events)))


@given(orders, st.sampled_from(["best", "sum", "latest"]), st.integers(1, 5), st.data())
@settings(max_examples=150, deadline=None)
def test_order_of_arrival_does_not_change_standings(drawn, aggregation, size, data):
    """The same set of events makes the same standings and digest, in any order and batches."""
    shuffled, events = drawn
    if aggregation == "latest":
        # Of equal times the later sequence counts, so a member's instants must differ.
        distinct = {(member, instant): value for member, value, instant in events}
        events = [(member, value, instant) for (member, instant), value in distinct.items()]
        shuffled = data.draw(st.permutations(list(enumerate(events))))
    definition = define(
        aggregation=aggregation,
        tie_rule=data.draw(st.sampled_from(["earliest", "latest", "member"])),
        rank_method=data.draw(st.sampled_from(["ordinal", "competition", "dense"])),
    )
    one, other = MemoryBoard(definition), MemoryBoard(definition)
    for index, (member, value, instant) in enumerate(events):
        submit(one, event(member, value, str(index), occurred_at=NOW_US - instant))
    sent = [
        event(member, value, str(index), occurred_at=NOW_US - instant)
        for index, (member, value, instant) in shuffled
    ]
    while sent:
        statuses(other, *sent[:size])
        del sent[:size]
    for question in (Digest(False, 0, None, None), Top(False, 0, None, None, 100, None)):
        assert ask(one, question) == ask(other, question)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=8))
def test_a_replay_reaches_the_live_state(sizes):
    """The log's records make the live board's state anew, forgotten keys included."""
    host = MemoryBoard(define(aggregation="sum", key_retention_days=1))
    for day, size in enumerate(sizes):
        events = [event(f"m{number}", number, f"{day}/{number}") for number in range(size)]
        statuses(host, *events, now_us=NOW_US + day * DAY_US)
    assert replayed(host.log).state_digest() == host.board.state_digest()


# Digests


def test_the_standings_digest_depends_on_standings_alone():
    """The published digest changes with a name, a score or an instant, and not otherwise."""
    digest = Digest(False, 0, None, None)
    host = MemoryBoard(define())
    seen = [ask(host, digest)["digest"]]
    steps = [
        (event("ada", 5, "j", occurred_at=NOW_US - 9), True),
        (event("ada", 4, "k", occurred_at=NOW_US - 8), False),
        (event("ada", 5, "l", occurred_at=NOW_US - 7), False),
        (event("ada", 5, "m", occurred_at=NOW_US - 10), True),
        (event("ada", 6, "n", occurred_at=NOW_US), True),
        (event("bo", 6, "o", occurred_at=NOW_US), True),
    ]
    for submitted, changes in steps:
        submit(host, submitted)
        found = ask(host, digest)["digest"]
        assert (found not in seen) == changes
        seen.append(found)


def test_the_state_digest_sees_everything():
    """Sequence, definition, keys and standings: each alone changes the digest of the state."""
    host = some_board()
    digests = {host.board.state_digest()}
    submit(host, event("ada", 1, "without effect on standings"))
    digests.add(host.board.state_digest())
    host.board.keys_floor_us = 1
    digests.add(host.board.state_digest())
    for changes in ({"grace_seconds": 1}, {"sources": ["s"]}):
        record = definition_record(host, **changes)
        host.board.apply(record)
        digests.add(host.board.state_digest())
    assert len(digests) == 5


# Copies


@pytest.mark.parametrize("rank_method", ["ordinal", "dense"])
@pytest.mark.parametrize("aggregation", ["best", "sum", "latest"])
def test_a_copy_is_the_board(aggregation, rank_method):
    """A board loaded from its dump has the same digest and goes on in the same way."""
    fields = {"aggregation": aggregation, "rank_method": rank_method, "key_retention_days": 1}
    host = some_board(**fields, score=score_keys("asc2"))
    copy = MemoryBoard(define(**fields))
    copy.log, copy.board = host.log.reopened(), loaded(host.board)
    assert copy.board.state_digest() == host.board.state_digest()
    assert copy.board.nbytes > 0
    later = NOW_US + 3 * DAY_US
    for each in (host, copy):
        found = statuses(each, event("bo", 5, "k"), event("cy", 1, "m"), event("ada", 9, "j"))
        assert found == ["duplicate", "applied", "idempotency_conflict"]
        statuses(each, event("cy", 1.25, "n"), now_us=later)
    assert copy.board.state_digest() == host.board.state_digest()


def test_a_copy_does_not_change_with_the_board():
    """What was dumped stays as it was while the board goes on."""
    host = some_board()
    header, columns = host.board.dump()
    digest = host.board.state_digest()
    kept = {name: memoryview(column).cast("B") for name, column in columns}
    statuses(host, *(event(f"new{n}", n, f"new{n}") for n in range(2_000)))
    assert Board.load(header, kept).state_digest() == digest


def test_a_copy_that_contradicts_itself_is_refused():
    """A dump with a missing, foreign or changed part does not become a board."""
    header, columns = some_board().board.dump()
    parts = {name: bytes(column) for name, column in columns}
    views = {name: memoryview(part) for name, part in parts.items()}
    assert Board.load(header, views).state_digest() == header["state_digest"]
    for name, part in parts.items():
        without = {other: view for other, view in views.items() if other != name}
        with pytest.raises((ValueError, LookupError)):
            Board.load(header, without)
        if name != "keys/next":  # the sequence that is next bounds later calls, it is no content
            changed = bytes([part[0] ^ 1]) + part[1:]
            with pytest.raises((ValueError, LookupError)):
                Board.load(header, views | {name: memoryview(changed)})
    for field, value in (("sequence", 4), ("keys_floor_us", 1), ("windows", [])):
        with pytest.raises((ValueError, LookupError)):
            Board.load(header | {field: value}, views)


# What cannot continue a board


def definition_record(host: MemoryBoard, **changes: Any) -> DefinitionRecord:
    """Make the record of a change, with changes to the identity where they are named so."""
    identity = host.board.identity._asdict()
    identity |= {name: changes.pop(name) for name in list(changes) if name in identity}
    return DefinitionRecord(
        first_sequence=host.board.sequence + 1,
        recorded_at_us=NOW_US,
        definition=define(**changes).to_record(),
        **identity,
    )


def test_records_are_applied_in_order():
    """A record that leaves a gap or comes again is refused and changes nothing."""
    host = some_board()
    digest = host.board.state_digest()
    for record in (
        *host.log.read(),
        dataclasses.replace(definition_record(host), first_sequence=9),
    ):
        with pytest.raises(ValueError, match="does not follow"):
            host.board.apply(record)
    assert host.board.state_digest() == digest


def test_another_boards_definition_is_refused():
    """A definition with another identity does not continue a board."""
    host = some_board()
    for identity in ({"board": "c"}, {"incarnation": "two"}, {"created_at_us": 1}):
        with pytest.raises(ValueError, match="another board"):
            host.board.apply(definition_record(host, **identity))


def test_a_window_opens_once():
    """Opening a window that is open already is refused."""
    host = some_board()
    again = WindowOpenedRecord(
        first_sequence=host.board.sequence + 1,
        recorded_at_us=NOW_US,
        window="all_time",
        start_us=None,
        end_us=None,
    )
    with pytest.raises(ValueError, match="opened before"):
        host.board.apply(again)


def test_a_window_with_bounds_counts_what_it_holds():
    """An event counts in each window that holds its instant: start included, end excluded."""
    start_us, end_us = NOW_US - 10, NOW_US - 5
    cup = {"name": "cup", "start": at(start_us), "end": at(end_us)}
    host = MemoryBoard(define(aggregation="sum", periods=["all_time", cup]))
    window = WindowOpenedRecord(
        first_sequence=3,
        recorded_at_us=NOW_US,
        window="cup",
        start_us=start_us,
        end_us=end_us,
    )
    host.commit([window])
    host.board.apply(window)
    instants = [start_us - 1, start_us, end_us - 1, end_us]
    sent = [event(value=10**n, key=str(n), occurred_at=us) for n, us in enumerate(instants)]
    assert statuses(host, *sent) == ["applied"] * 4
    assert [
        entry["score"] for entry in ask(host, Top(False, 0, "cup", None, 9, None))["entries"]
    ] == [110]
    assert [
        entry["score"] for entry in ask(host, Top(False, 0, None, None, 9, None))["entries"]
    ] == [1111]
    assert replayed(host.log).state_digest() == host.board.state_digest()
    assert loaded(host.board).state_digest() == host.board.state_digest()
    answer = submit(host, event(value=1, key="last", occurred_at=start_us))
    assert [standing["period"] for standing in answer["standings"]] == ["all_time", "cup"]


def test_each_events_record_chains_its_members():
    """Each event names its member's event before, across records and inside one."""
    host = some_board()
    statuses(host, event("bo", 1, "m"), event("bo", 1, "n"), event("cy", 1, "o"))
    rows = [
        record.row(index)
        for record in host.log.read()
        if isinstance(record, EventsRecord)
        for index in range(record.count)
    ]
    chains = [(row.sequence, row.member, row.previous_sequence) for row in rows]
    assert chains == [
        (3, b"ada", 0), (4, b"bo", 0), (5, b"ada", 3), (6, b"bo", 4), (7, b"bo", 6), (8, b"cy", 0),
    ]  # fmt: skip
    assert [row.occurred_at_given for row in rows] == [False] * 6
    assert [row.received_at_us for row in rows] == [NOW_US] * 6
