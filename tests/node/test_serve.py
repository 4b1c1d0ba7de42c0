"""A whole node: what it listens on, how it stops, its samples, and the commands against it."""

from __future__ import annotations

import contextlib
import csv
import os
import shutil
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

from tests.running_node import RANKNODE, RunningNode, wait_until

OFFICIAL_POINTS = Path(__file__).parents[1] / "data" / "f1" / "official_points.csv"
LOOPBACK = {
    "0100007F",  # 127.0.0.1
    "0000000000000000FFFF00000100007F",  # ::ffff:127.0.0.1
    "00000000000000000000000001000000",  # ::1
}
LISTENING = "0A"
ACCEPTING = 1 << 16  # of the flags of a socket that has a file: connections are taken
EXIT_RAY_LOST = 75

MakeNode = Callable[..., RunningNode]


def run(*arguments: str | Path, expected: int = 0) -> str:
    ran = subprocess.run(
        [RANKNODE, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == expected, ran.stdout + ran.stderr
    assert "Traceback" not in ran.stdout + ran.stderr
    return ran.stdout


def sockets_of(processes: list[int]) -> set[str]:
    """List the inodes of the processes' sockets."""
    inodes = set()
    for process in processes:
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
                target = os.readlink(descriptor)
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
    return inodes


def listening(processes: list[int]) -> list[str]:
    """List the local addresses, in the kernel's hexadecimal, on which the processes listen."""
    inodes = sockets_of(processes)
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTENING and fields[9] in inodes:
                found.append(fields[1].partition(":")[0])
    return found


def listening_files(processes: list[int]) -> list[str]:
    """List the files of sockets, or the names of abstract ones, on which the processes listen."""
    inodes = sockets_of(processes)
    found = []
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[3], 16) & ACCEPTING and fields[6] in inodes:
            found.append(fields[7] if len(fields) > 7 else "@")
    return found


def fill(node: RunningNode, board: str = "b") -> Any:
    """Make a board with a few hundred events; returns its digest's answer."""
    assert node.call("PUT", f"/v1/boards/{board}", {"aggregation": "best"})[0] == 201
    events = [
        {"member": f"m{i % 40}", "value": i * 37 % 101, "idempotency_key": f"k{i}"}
        for i in range(400)
    ]
    status, answer = node.call("POST", f"/v1/boards/{board}/events", {"events": events})
    assert (status, answer["applied"]) == (200, 400)
    return node.ask(f"/v1/boards/{board}/digest")


def test_listens_on_loopback_only(make_node: MakeNode) -> None:
    """Nobody outside the machine reaches any port of a node, Ray's included."""
    node = make_node().start()
    fill(node)
    addresses = listening(node.processes())
    assert len(addresses) >= 4, "the gateway's, Ray's services' and the board's are seen"
    assert set(addresses) <= LOOPBACK
    assert node.stop() == 0


def test_clean_stop(make_node: MakeNode, tmp_path: Path) -> None:
    """SIGTERM ends a node within 10 s: nothing is left running, the snapshot holds everything."""
    node = make_node().start()
    digest = fill(node)
    ray_directory = Path((node.data / "node.lock").read_text())
    assert ray_directory.is_dir()
    begun = time.monotonic()
    assert node.stop() == 0
    assert time.monotonic() - begun < 10
    assert not ray_directory.exists()
    snapshots = [p.name for p in (node.data / "boards" / "b" / "snapshots").iterdir()]
    assert snapshots == [f"{digest['sequence']:020d}.snapshot"]
    node.start()
    again = node.ask("/v1/boards/b/digest")
    assert again == digest
    assert node.stop() == 0
    assert f"from snapshot {digest['sequence']}" in node.output.read_text()


def test_other_users_reach_nothing_of_a_node(make_node: MakeNode) -> None:
    """A node's sockets, all there are, and its data are where only the node's user may enter."""
    node = make_node().start()
    fill(node)
    ray_directory = Path((node.data / "node.lock").read_text())
    sockets = [path for path in ray_directory.rglob("*") if path.is_socket()]
    assert [path for path in sockets if path.suffix == ".calls"], "the board's socket is there"
    assert len(sockets) > 1, "Ray's sockets are there"
    assert set(listening_files(node.processes())) == {str(path) for path in sockets}
    for directory in (ray_directory, node.data):
        assert directory.stat().st_mode & 0o777 == 0o700
    assert node.stop() == 0
    assert "other users" not in node.output.read_text()


def test_a_data_directory_that_is_open_to_others_is_said(make_node: MakeNode) -> None:
    """One that was there before keeps its mode, and each start says once what that means."""
    node = make_node()
    node.data.mkdir()
    node.data.chmod(0o755)
    node.start()
    assert node.data.stat().st_mode & 0o777 == 0o755
    assert node.stop() == 0
    log = node.output.read_text()
    assert log.count("is open to other users of this machine (mode 755)") == 1


def test_a_ray_that_does_not_start_is_worth_another_try(make_node: MakeNode) -> None:
    """Whatever Ray raises while it starts, the node says so, leaves nothing and ends with 75."""
    node = make_node()
    node.environment["RAY_OVERRIDE_RESOURCES"] = "not JSON"  # which makes `ray.init` raise
    node.launch()
    assert node.process.wait(60) == EXIT_RAY_LOST
    assert "Ray did not start" in node.output.read_text()
    wait_until(lambda: not node.processes(), 1, "nothing is left running")
    assert not Path((node.data / "node.lock").read_text()).exists()


def test_interrupted_from_the_terminal(make_node: MakeNode) -> None:
    """Ctrl-C, which reaches every process of the group, ends a node in order."""
    node = make_node().start()
    fill(node)
    os.killpg(node.process.pid, signal.SIGINT)
    assert node.process.wait(10) == 0
    wait_until(lambda: not node.processes(), 1, "nothing is left running")


def test_rebuild_from_the_log(make_node: MakeNode) -> None:
    """Without its snapshots a board is rebuilt from the log alone, digest for digest."""
    node = make_node().start()
    digest = fill(node)
    assert node.stop() == 0
    shutil.rmtree(node.data / "boards" / "b" / "snapshots")
    node.start()
    assert node.ask("/v1/boards/b/digest") == digest
    assert node.stop() == 0
    assert "from snapshot 0 " in node.output.read_text()


def test_starts_in_any_directory(make_node: MakeNode, tmp_path: Path) -> None:
    """Modules that happen to lie where a node is started are not taken for its own."""
    for name in ("actors", "node", "persistence"):
        (tmp_path / "elsewhere" / name).mkdir(parents=True)
        (tmp_path / "elsewhere" / name / "__init__.py").write_text("raise SystemExit('not ours')")
    node = make_node()
    node.directory = tmp_path / "elsewhere"
    node.start()
    fill(node)
    assert node.stop() == 0


def test_second_node_is_refused(make_node: MakeNode) -> None:
    """A data directory has one node; a second one says so and leaves the first alone."""
    node = make_node().start()
    digest = fill(node)
    ran = subprocess.run(
        [RANKNODE, "serve", "--data", node.data, "--port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode != 0
    assert "another node" in ran.stdout + ran.stderr
    assert node.ask("/v1/boards/b/digest") == digest
    assert node.stop() == 0


def test_samples(make_node: MakeNode) -> None:
    """Seasons are the official tables, closed; careers are their sums; nothing is loaded twice."""
    official: dict[str, Decimal] = defaultdict(Decimal)
    seasons: dict[str, dict[str, Decimal]] = defaultdict(dict)
    with OFFICIAL_POINTS.open() as file:
        for row in csv.DictReader(file):
            official[row["driver"]] += Decimal(row["points"])
            seasons[row["season"]][row["driver"]] = Decimal(row["points"])
    node = make_node("data", "--samples").start()
    wait_until(lambda: "curl" in node.output.read_text(), 60, "the samples are shown")
    top = node.ask("/v1/boards/f1-points/top?period=all_time&limit=1000")
    totals = {entry["member"]: Decimal(str(entry["score"])) for entry in top["entries"]}
    assert totals == official
    for season, table in seasons.items():
        path = f"/v1/boards/f1-points/top?period=yearly:{season}-01-01&limit=100"
        closed = node.ask(path)
        assert closed["period"]["closed"] is True
        points = {entry["member"]: Decimal(str(entry["score"])) for entry in closed["entries"]}
        assert points == table
    laps = node.ask("/v1/boards/f1-fastest-laps/top?limit=1000")
    times = [entry["score"] for entry in laps["entries"]]
    assert times == sorted(times)
    assert node.stop() == 0
    shown = len(node.output.read_text())
    node.start()
    wait_until(lambda: "curl" in node.output.read_text()[shown:], 60, "the tops are shown again")
    assert node.ask("/v1/boards/f1-points/top?period=all_time&limit=1000") == top
    assert node.stop() == 0


def test_commands_round_trip(make_node: MakeNode, tmp_path: Path) -> None:
    """What export writes imports again to the same digest; twice is once; verify finds no fault."""
    node = make_node().start()
    digest = fill(node)
    exported = tmp_path / "b.ndjson"
    run("export", "b", "--data", node.data, "--output", exported)
    for _ in range(2):
        run("import", "copy", exported, "--url", node.url)
    copied = node.ask("/v1/boards/copy/digest")
    assert (copied["digest"], copied["members"]) == (digest["digest"], digest["members"])
    assert "m" in run("top", "b", "--url", node.url)
    run("verify", node.data)
    assert node.stop() == 0
    run("verify", node.data)
    snapshot = next((node.data / "boards" / "b" / "snapshots").iterdir())
    content = bytearray(snapshot.read_bytes())
    content[len(content) // 2] ^= 1
    snapshot.write_bytes(content)
    assert snapshot.name in run("verify", node.data, expected=1)


def test_idle_boards_are_put_away(make_node: MakeNode) -> None:
    """A board that nobody asks for gives its process back, and is there when asked again."""
    config = make_node().data.with_name("idle.toml")
    config.write_text("board_idle_seconds = 0.5\n")
    node = make_node("data", "--config", str(config)).start()
    digest = fill(node)
    wait_until(lambda: not node.named("ray::BoardActor"), 20, "the idle board is put away")
    assert node.ask("/v1/boards/b/digest") == digest
    assert node.stop() == 0


def test_more_boards_than_fit(make_node: MakeNode) -> None:
    """With more boards than may be active each still answers, and no more are ever active."""
    config = make_node().data.with_name("few.toml")
    config.write_text("boards_active_max = 2\n")
    node = make_node("data", "--config", str(config)).start()
    digests = {f"b{i}": fill(node, f"b{i}") for i in range(4)}
    for board, digest in digests.items():
        assert node.ask(f"/v1/boards/{board}/digest") == digest
        assert len(node.named("ray::BoardActor")) <= 3, "one may be on its way out"
    assert node.stop() == 0


def test_damaged_board_fails_alone(make_node: MakeNode) -> None:
    """A board whose log is damaged answers 503 and says why in the log; others answer."""
    node = make_node().start()
    fill(node, "good")
    fill(node, "bad")
    assert node.stop() == 0
    shutil.rmtree(node.data / "boards" / "bad" / "snapshots")
    data = node.data / "boards" / "bad" / "log" / "00000001" / "data.mdb"
    content = bytearray(data.read_bytes())
    place = content.index(b"m1m2m3")
    content[place] ^= 1
    data.write_bytes(content)
    node.start()
    assert node.ask("/v1/boards/good/top")["members"] == 40
    status, problem = node.call("GET", "/v1/boards/bad/top")
    assert (status, problem["code"]) == (503, "board_unavailable")
    assert str(node.data) not in str(problem)
    wait_until(lambda: "cannot be brought up" in node.output.read_text(), 5, "the log says why")
    assert node.stop() == 0


def test_stopped_while_it_starts(make_node: MakeNode) -> None:
    """SIGTERM at any moment of a start ends it, and nothing is left running.

    While Ray's core starts it answers signals itself, and ends the process by one.
    """
    for delay in (0.6, 1.2, 2.0, 2.8):
        node = make_node(f"data-{delay}")
        node.launch()
        time.sleep(delay)
        node.process.terminate()
        assert node.process.wait(10) in (0, -signal.SIGTERM, -signal.SIGABRT)
        wait_until(lambda node=node: not node.processes(), 5, "nothing is left running")


def test_many_new_boards(make_node: MakeNode) -> None:
    """A board that was just created answers, however many others were created before it."""
    node = make_node().start()
    for number in range(30):
        assert node.call("PUT", f"/v1/boards/b{number}", {"aggregation": "sum"})[0] == 201
    event = {"member": "m", "value": 1, "idempotency_key": "k"}
    for number in (29, 0, 15):
        status, answer = node.call("POST", f"/v1/boards/b{number}/events", event)
        assert (status, answer["status"]) == (200, "applied")
    assert node.stop() == 0


def test_one_board_from_many_sides(make_node: MakeNode) -> None:
    """Creating and deleting one board from many clients at once breaks no answer."""
    node = make_node().start()
    expected = {"PUT": {200, 201}, "DELETE": {204, 404}, "GET": {200, 404, 503}}

    def client(number: int) -> list[tuple[str, int]]:
        methods = ["PUT", "DELETE", "PUT", "GET"]
        return [
            (method, node.call(method, "/v1/boards/b", body)[0])
            for method in methods[number % 4 :] + methods * 4
            for body in [{"aggregation": "sum"} if method == "PUT" else None]
        ]

    with ThreadPoolExecutor(8) as pool:
        answers = [answer for answers in pool.map(client, range(8)) for answer in answers]
    assert [(m, s) for m, s in answers if s not in expected[m]] == []
    assert node.stop() == 0


def test_export_after_stricter_rules(make_node: MakeNode, tmp_path: Path) -> None:
    """Events that today's rules would refuse are part of an export, and import again."""
    node = make_node().start()
    digest = fill(node)
    stricter = {"max_value": 1, "sources": ["none"]}
    assert node.call("PATCH", "/v1/boards/b", stricter)[0] == 200
    exported = tmp_path / "b.ndjson"
    run("export", "b", "--data", node.data, "--output", exported)
    run("import", "copy", exported, "--url", node.url)
    assert node.ask("/v1/boards/copy/digest")["digest"] == digest["digest"]
    description = node.ask("/v1/boards/copy")
    assert {name: description[name] for name in stricter} == stricter
    assert description["mode"] == "live"
    run("import", "NOT/AN/ID", exported, "--url", node.url, expected=2)
    run("import", "copy", exported, "--url", "nonsense", expected=1)
    assert node.stop() == 0
