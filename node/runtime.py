"""A node from start to end: the lock on its data, embedded Ray, the boards, the gateway, the stop.

Owns the order of things. Start: lock, leftovers, guard, Ray, boards, gateway. Stop: no new
requests, those under way finish, boards are put away, Ray ends, the guard sees that nothing is
left. If one of Ray's own processes dies the node ends too, with EXIT_RAY_LOST: its next start
recovers everything acknowledged, while a node without its raylet would only look alive.
"""

from __future__ import annotations

import asyncio
import fcntl
import functools
import logging
import os
import secrets
import signal
import socket
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import uvloop

from node import descriptors, guard
from node.access import Access, check_reach
from node.config import API_KEY, Config
from node.key_file import NODE_LOCK, KeyFile
from node.ray_services import RayWatch
from node.stop_signals import STOP_SIGNALS
from node.worker_files import keep_swept
from persistence.errors import RanknodeError
from persistence.files import PRIVATE_MODE, make_directory

EXIT_RAY_LOST = 75  # EX_TEMPFAIL of sysexits.h: start it again
PUT_AWAY_SECONDS = 2.5
STOP_SECONDS_MAX = 8.5  # service managers and operators give ten; the guard clears up after it
LOCK_SECONDS_MAX = 3.0
LOCK_RETRY_SECONDS = 0.05
OBJECT_STORE_BYTES = 80 << 20  # Ray's minimum; calls are small and never go through it
RAY_DIRECTORY_PREFIX = "ranknode-"
RAY_FOLDER = "r"  # Ray opens its directory to everyone, so that stands in one that is not
RAY_SOCKET_BYTES = 86  # of a socket's path below the directory for temporary files

_LOG = logging.getLogger("ranknode")


class DataInUseError(RanknodeError):
    """Raised when another node runs over the same data directory."""


class DataLock:
    """The lock that makes a node the only one over its data directory.

    It also remembers Ray's directory, so that the next node can clear it should this one be killed
    together with its guard.
    """

    def __init__(self, data_directory: Path) -> None:
        make_directory(data_directory, PRIVATE_MODE)
        self._file = os.open(data_directory / NODE_LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        # A killed node's guard holds the lock too, until it has cleared up.
        deadline = time.monotonic() + LOCK_SECONDS_MAX
        while not self._lock():
            if time.monotonic() > deadline:
                os.close(self._file)
                raise DataInUseError(f"another node runs over {data_directory}")
            time.sleep(LOCK_RETRY_SECONDS)

    def release(self) -> None:
        """Give the directory up."""
        os.close(self._file)

    def _lock(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def take_ray_directory(self) -> Path:
        """Make a fresh directory that Ray's may stand in, open to this user alone.

        A predecessor's is cleared, and what still uses it.
        """
        left = Path(os.pread(self._file, 4096, 0).decode(errors="replace").strip("\0"))
        if left.name.startswith(RAY_DIRECTORY_PREFIX) and left.is_dir():
            guard.clear(left, spared={os.getpid()})
        fresh = Path(tempfile.mkdtemp(prefix=RAY_DIRECTORY_PREFIX, dir=_short_directory()))
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, str(fresh).encode(), 0)
        return fresh


def _short_directory() -> str:
    """Choose where Ray's directory may be: a path of a socket has at most 107 bytes."""
    usual = tempfile.gettempdir()
    return usual if len(os.fsencode(usual)) + RAY_SOCKET_BYTES <= 107 else "/tmp"  # noqa: S108


def serve(config: Config, samples: bool = False) -> int:
    """Run a node until SIGTERM or SIGINT; returns the exit code.

    samples: also fill the sample boards once the node answers. Errors: DataInUseError, OSError.
    """
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    _stop_at_signals()
    _stop_from_a_thread()
    try:
        return _serve(config, samples)
    except SystemExit as ended:
        return 0 if ended.code in (0, *STOP_SIGNALS) else EXIT_RAY_LOST


def _stop_at_signals() -> None:
    for number in STOP_SIGNALS:
        signal.signal(number, _stop_start)


def _stop_from_a_thread() -> None:
    """Let a signal end the start also while the main thread waits inside of Ray.

    Python's own handlers run between two steps of the main thread, however long one takes; the
    descriptor is written to at once. The loop takes it over when the node runs.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def wait() -> None:
        with writer:
            while number := reader.recv(1):
                if number[0] in STOP_SIGNALS:
                    os._exit(0)

    threading.Thread(target=wait, name="start signals", daemon=True).start()


def _stop_start(_number: int, _frame: object) -> NoReturn:
    """End a node that is still starting, at once: its guard clears up what Ray has begun."""
    os._exit(0)


def _serve(config: Config, samples: bool) -> int:
    data_directory = Path(config.data_directory).resolve()
    # One for as long as the node runs: having seen keys, it is never again without.
    keys = KeyFile(data_directory)
    check_reach(config.host, keys)
    _check_port(config)
    config = descriptors.fit_connections(config, descriptors.raise_limit())
    # Taken out of the environment, which Ray's processes inherit.
    samples_key = os.environ.pop(API_KEY, None)
    lock = DataLock(data_directory)
    _say_who_may_read(data_directory)
    # Ray's workers look for modules where their node was started, before anywhere else.
    os.chdir(data_directory)
    ray_directory = lock.take_ray_directory()
    watcher = guard.start_guard(ray_directory)
    try:
        try:
            _start_ray(ray_directory / RAY_FOLDER, config.boards_active_max)
        except SystemExit as ended:
            # Ray answers a signal during its own start in this way, with the signal's number. It
            # may abort the process that unwinds through it; the guard clears up.
            os._exit(0 if ended.code in (0, *STOP_SIGNALS) else EXIT_RAY_LOST)
        except Exception:  # noqa: BLE001  (whatever Ray raises, all there is to do is to try again)
            _LOG.critical("Ray did not start; start the node again", exc_info=True)
            return EXIT_RAY_LOST
        # Ray's core has put its own handlers there, which end the process as by a crash.
        _stop_at_signals()
        ray_watch = RayWatch(_ray_lost)
        try:
            access = Access(keys, config)
            fill = functools.partial(_fill_samples, key=samples_key) if samples else None
            directories = (data_directory, ray_directory)
            running = _run(config, access, directories, watcher.process, ray_watch, fill)
            return uvloop.run(running)
        finally:
            ray_watch.dismiss()
            _stop_ray()
    finally:
        watcher.dismiss()


def _check_port(config: Config) -> None:
    """Find out that the port is taken before anything is started. Errors: OSError."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((config.host, config.port))


def _say_who_may_read(data_directory: Path) -> None:
    """Say in the log that a data directory which was there before is open to other users."""
    mode = stat.S_IMODE(data_directory.stat().st_mode)
    if mode & ~PRIVATE_MODE:
        _LOG.warning(
            "%s is open to other users of this machine (mode %o); chmod 700 keeps them out",
            data_directory,
            mode,
        )


def _start_ray(ray_directory: Path, boards_active_max: int) -> None:
    """Start Ray inside this node, on loopback alone."""
    os.environ.update(
        RAY_USAGE_STATS_ENABLED="0",
        RAY_worker_niceness="0",  # the default, 15, starves boards beside a busy gateway
        # Ray binds to every interface unless it believes itself on a single machine.
        RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",
        # Boards are brought up a few at a time; Ray's own bound would only make it warn of them.
        RAY_worker_maximum_startup_concurrency=str(boards_active_max),
        RAY_AUTH_MODE="token",
        RAY_AUTH_TOKEN=secrets.token_hex(32),
    )
    import ray  # noqa: PLC0415  (reads its environment when it is imported)

    ray.init(
        address="local",
        include_dashboard=False,
        num_cpus=1,  # boards ask for none; this bounds the workers started ahead of need
        object_store_memory=OBJECT_STORE_BYTES,
        _temp_dir=str(ray_directory),
        namespace="ranknode",
        configure_logging=True,
        logging_level=logging.WARNING,
    )


def _stop_ray() -> None:
    import ray  # noqa: PLC0415

    ray.shutdown()


def _ray_lost() -> None:
    """End at once: without Ray no board can be reached, and the guard clears up what is left."""
    _LOG.critical("one of Ray's processes ended; this node ends, start it again")
    os._exit(EXIT_RAY_LOST)


def _stop_by_force(exit_code: int) -> None:
    """End a node whose stop takes too long, as when Ray waits for what was told to end as well."""
    _LOG.warning("the stop took too long; the boards will recover")
    os._exit(exit_code)


def _stop_without_ray() -> None:
    """End a node that is stopping at once: calls of Ray would wait, and all else is on disk.

    Service managers tell all processes of a service to end, Ray's too.
    """
    _LOG.warning("Ray ended before its node; the boards will recover")
    os._exit(0)


async def _run(
    config: Config,
    access: Access,
    directories: tuple[Path, Path],
    guard_process: int,
    ray_watch: RayWatch,
    fill: Callable[[str], Coroutine[Any, Any, None]] | None,
) -> int:
    from actors.board_actor import ActorOptions  # noqa: PLC0415  (after Ray's environment is set)
    from actors.directory import Directory  # noqa: PLC0415
    from actors.garbage import spare_what_is_loaded  # noqa: PLC0415
    from actors.logged_board import BoardOptions  # noqa: PLC0415
    from node.boards import NodeBoards  # noqa: PLC0415
    from node.extra_gateways import ExtraGateways  # noqa: PLC0415
    from node.gateway import Gateway  # noqa: PLC0415
    from node.gateway_hub import GatewayHub  # noqa: PLC0415
    from node.metrics import Metrics  # noqa: PLC0415
    from persistence.event_log import LogOptions  # noqa: PLC0415

    data_directory, ray_directory = directories
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    exit_code = 0

    def guard_lost() -> None:
        nonlocal exit_code
        _LOG.critical("the guard of this node was killed; this node ends in order")
        exit_code = EXIT_RAY_LOST
        stopping.set()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stopping.set)
    guard_watch = os.pidfd_open(guard_process)
    loop.add_reader(guard_watch, guard_lost)
    log_options = LogOptions(
        segment_events_max=config.segment_events_max,
        segment_bytes_max=config.segment_bytes_max,
        reserved_free_bytes=config.reserved_free_bytes,
    )
    options = ActorOptions(
        BoardOptions(log_options, config.snapshot_events, config.archive_cache_bytes_max),
        config.commit_events_max,
        str(ray_directory),
    )
    metrics = Metrics()
    boards = NodeBoards(config, Directory(data_directory, options), metrics)
    gateway = Gateway(boards, config, access, metrics=metrics)
    await gateway.start()
    await boards.start()
    hub = GatewayHub(boards, str(ray_directory), metrics)
    await hub.start()
    shared = msgspec.structs.replace(config, data_directory=str(data_directory), port=gateway.port)
    extras = ExtraGateways(shared, ray_directory)
    spare_what_is_loaded()
    _LOG.info("ready at %s", gateway.url)
    filling = asyncio.create_task(fill(gateway.url)) if fill is not None else None
    sweeping = asyncio.create_task(keep_swept(ray_directory))
    await stopping.wait()
    ray_watch.lost = _stop_without_ray
    overdue = threading.Timer(STOP_SECONDS_MAX, _stop_by_force, [exit_code])
    overdue.daemon = True
    overdue.start()
    loop.remove_reader(guard_watch)
    os.close(guard_watch)
    sweeping.cancel()
    if filling is not None:
        filling.cancel()
        await asyncio.gather(filling, return_exceptions=True)
    await asyncio.gather(gateway.stop(), extras.stop())
    await hub.stop()
    await boards.close(PUT_AWAY_SECONDS)
    return exit_code


async def _fill_samples(url: str, key: str | None) -> None:
    from node.samples import load_samples  # noqa: PLC0415

    try:
        await load_samples(url, key=key)
    except RanknodeError as error:
        _LOG.error("the sample boards could not be filled: %s", error)
