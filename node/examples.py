"""Examples of bodies and answers for the OpenAPI document, by the names of the calls."""

from __future__ import annotations

from typing import Any

_BY = {"actor": "mod-1", "reason": "speed hack"}

REQUEST_EXAMPLES: dict[str, dict[str, Any]] = {
    "createBoard": {
        "points": {
            "aggregation": "sum",
            "score": [{"name": "points", "direction": "desc", "decimals": 1}],
            "rank_method": "competition",
        },
        "seasons": {
            "aggregation": "best",
            "periods": [
                "weekly",
                "all_time",
                {
                    "name": "winter-cup",
                    "start": "2026-12-01T18:00:00+01:00",
                    "end": "2026-12-20T18:00:00+01:00",
                },
            ],
            "timezone": "Europe/Berlin",
            "day_starts_at": "04:00",
            "keep_closed_periods": 52,
        },
    },
    "changeBoard": {"import": {"mode": "backfill"}},
    "submitEvents": {
        "one": {
            "member": "mary1934",
            "value": 25,
            "idempotency_key": "match-77/mary1934",
            "occurred_at": "2026-11-30T10:00:00Z",
            "source": "match-server-3",
        },
        "batch": {
            "events": [
                {"member": "ada", "value": 12.5, "idempotency_key": "match-78/ada"},
                {"member": "bob", "value": 9, "idempotency_key": "match-78/bob"},
            ]
        },
    },
    "submitRoutedEvents": {
        "one": {
            "board": "points",
            "member": "mary1934",
            "value": 25,
            "idempotency_key": "match-79/mary1934",
        },
        "batch": {
            "events": [
                {"board": "points", "member": "ada", "value": 3, "idempotency_key": "match-80/ada"},
                {"board": "laps", "member": "ada", "value": 81.5, "idempotency_key": "lap-80/ada"},
            ]
        },
    },
    "lookup": {"friends": {"members": ["mary1934", "ada", "nobody"]}},
    "voidEvent": {"cheat": _BY},
    "hideMember": {"cheat": _BY},
    "showMember": {"cleared": _BY | {"reason": "the replay shows nothing wrong"}},
    "removeMember": {"cheat": _BY},
    "eraseMember": {"request": {"actor": "support-2", "reason": "ticket 4711"}},
    "eraseMemberEverywhere": {"request": {"actor": "support-2", "reason": "ticket 4711"}},
    "setProfile": {
        "mary": {
            "display_name": "Mary",
            "avatar_url": "https://cdn.example.com/mary.png",
            "extra": {"guild": "Owls", "level": 12},
        },
        "none": {},
    },
    "openDispute": {"doubt": {"sequence": 17, "reason": "nobody is that fast", "opened_by": "ada"}},
    "settleDispute": {
        "upheld": {"status": "upheld", "note": "the replay shows it", "actor": "mod-1"},
        "rejected": {"status": "rejected", "note": "a fair run", "actor": "mod-1"},
    },
}

_LISTED = {
    "board": "points",
    "created_at": "2026-11-29T12:00:00Z",
    "aggregation": "sum",
    "score": [{"name": "points", "direction": "desc", "decimals": 1}],
    "tie_rule": "earliest",
    "rank_method": "competition",
    "periods": ["all_time"],
    "timezone": "UTC",
    "day_starts_at": "00:00",
    "week_starts_on": "monday",
    "grace_seconds": 300,
    "future_tolerance_seconds": 60,
    "key_retention_days": 30,
    "keep_closed_periods": None,
    "min_value": None,
    "max_value": None,
    "sources": None,
    "mode": "live",
}
_INFO = _LISTED | {"sequence": 17, "members": {"all_time": 1}}
_WINDOW = {"id": "all_time", "start": None, "end": None, "closed": False, "revision": None}
_ENTRY = {
    "rank": 1,
    "position": 1,
    "member": "mary1934",
    "score": 125,
    "achieved_at": "2026-11-30T10:00:00Z",
}
_SHOWN = {"display_name": "Mary", "extra": {"guild": "Owls"}}
_BATCH = {
    "results": [
        {"status": "applied", "sequence": 18},
        {
            "status": "rejected",
            "code": "value_precision",
            "detail": "value: has more than 0 digits after the point",
            "field": "value",
        },
    ],
    "applied": 1,
    "duplicates": 0,
    "rejected": 1,
}
_ONE = {
    "status": "applied",
    "sequence": 17,
    "standings": [{"period": "all_time", "score": 125, "rank": 1, "improved": True}],
}
_DISPUTE = {
    "id": "19",
    "status": "open",
    "event_sequence": 17,
    "member": "mary1934",
    "windows": ["all_time"],
    "reason": "nobody is that fast",
    "opened_by": "ada",
    "opened_at": "2026-11-30T10:05:00Z",
    "note": None,
    "actor": None,
    "settled_at": None,
}
_UPHELD = _DISPUTE | {
    "status": "upheld",
    "note": "the replay shows it",
    "actor": "mod-1",
    "settled_at": "2026-11-30T11:00:00Z",
}
_RULED = {"record": {"board": "points", "sequence": 20}}
_HEAD = {"board": "points", "period": _WINDOW, "members": 1, "sequence": 17}
ANSWER_EXAMPLES: dict[str, dict[str, Any]] = {
    "listBoards": {"page": {"boards": [_LISTED], "next": None}},
    "createBoard": {"points": _INFO | {"sequence": 1, "members": {"all_time": 0}}},
    "describeBoard": {"points": _INFO},
    "changeBoard": {"import": _INFO | {"mode": "backfill"}},
    "submitEvents": {"one": _ONE, "batch": _BATCH | {"sequence": 18}},
    "submitRoutedEvents": {"one": _ONE, "batch": _BATCH | {"sequences": {"points": 18}}},
    "top": {"page": _HEAD | {"entries": [_ENTRY], "next": None}},
    "member": {"entry": _HEAD | {"entry": _ENTRY, "percentile": 100.0}},
    "around": {"entries": _HEAD | {"entries": [_ENTRY]}},
    "rank": {"place": _HEAD | {"rank": 2, "position": 2}},
    "range": {"page": _HEAD | {"entries": [_ENTRY], "count": 1, "next": None}},
    "bands": {
        "top": _HEAD | {"bands": [{"percentile": 1, "position": 1, "score": 125}]},
        "nobody": _HEAD
        | {"members": 0, "bands": [{"percentile": 1, "position": None, "score": None}]},
    },
    "lookup": {
        "friends": _HEAD
        | {
            "entries": [_ENTRY | {"profile": _SHOWN, "local_rank": 1}],
            "missing": ["ada", "nobody"],
        }
    },
    "digest": {"open": _HEAD | {"digest": "6f0c9a3c7b9e210d5d1b1b5ef39dfb4f"}},
    "memberPlaces": {
        "places": {
            "member": "mary1934",
            "boards": [
                _HEAD | {"entry": _ENTRY, "percentile": 100.0},
                {
                    "board": "laps",
                    "entry": None,
                    "code": "member_not_found",
                    "detail": "'mary1934' does not stand in all_time",
                },
            ],
        }
    },
    "periods": {
        "page": {
            "board": "points",
            "sequence": 17,
            "periods": [
                {
                    "id": "daily:2026-11-30",
                    "start": "2026-11-30T00:00:00Z",
                    "end": "2026-12-01T00:00:00Z",
                    "closes_at": "2026-12-01T00:05:00Z",
                    "closed": False,
                    "closed_at": None,
                    "members": 1,
                    "digest": None,
                    "revision": None,
                },
                {
                    "id": "daily:2026-11-29",
                    "start": "2026-11-29T00:00:00Z",
                    "end": "2026-11-30T00:00:00Z",
                    "closes_at": "2026-11-30T00:05:00Z",
                    "closed": True,
                    "closed_at": "2026-11-30T00:05:00.2Z",
                    "members": 2,
                    "digest": "0d5d1b1b5ef39dfb4f5ec0b3fd4a8b4a5a7a3cf4c0b0a4f5dd0f0c9a3c7b9e21",
                    "revision": 1,
                },
            ],
            "upcoming": {"daily": "2026-12-01T00:00:00Z"},
            "next": None,
        }
    },
    "history": {
        "page": {
            "board": "points",
            "sequence": 20,
            "member": "mary1934",
            "events": [
                {
                    "sequence": 17,
                    "value": 25,
                    "occurred_at": "2026-11-30T10:00:00Z",
                    "received_at": "2026-11-30T10:00:00.25Z",
                    "source": "match-server-3",
                    "idempotency_key": "match-77/mary1934",
                    "voided": True,
                }
            ],
            "next": None,
        }
    },
    "voidEvent": _RULED,
    "hideMember": _RULED,
    "showMember": _RULED,
    "removeMember": _RULED,
    "eraseMember": _RULED,
    "eraseMemberEverywhere": {
        "boards": {
            "sequences": {"points": 20, "seasons": 1412},
            "failed": [
                {
                    "board": "laps",
                    "code": "board_unavailable",
                    "detail": "the board is still being brought up",
                }
            ],
        }
    },
    "setProfile": _RULED,
    "openDispute": {"opened": _DISPUTE | {"board": "points", "sequence": 19}},
    "disputes": {
        "page": {
            "board": "points",
            "sequence": 20,
            "disputes": [_UPHELD],
            "count": 1,
            "next": None,
        }
    },
    "settleDispute": {"upheld": _UPHELD | {"board": "points", "sequence": 20}},
    "audit": {
        "page": {
            "board": "points",
            "sequence": 20,
            "records": [
                {
                    "sequence": 20,
                    "at": "2026-11-30T11:00:00Z",
                    "action": "uphold",
                    "actor": "mod-1",
                    "reason": "the replay shows it",
                    "key": "4f1d0c9a3c7b",
                    "member": "mary1934",
                    "event_sequence": None,
                    "dispute": "19",
                }
            ],
            "next": None,
        }
    },
}
