"""File descriptors: as many as the system lets the node have, and what fits into them.

Each connection is one. Commonly 1,024 are allowed to begin with (the soft limit) and many more may
be taken for the asking (the hard one).
"""

from __future__ import annotations

import logging
import resource
import sys

import msgspec

from node.config import Config

_LOG = logging.getLogger("ranknode")

RESERVED = 128  # for Ray's sockets and what the node opens itself
RESERVED_PER_BOARD = 4  # for the connections to a board's process


def raise_limit() -> int:
    """Raise the soft limit of descriptors to the hard one; returns how many there may be."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def reserved(config: Config) -> int:
    """Return how many descriptors are kept for the node itself."""
    return RESERVED + RESERVED_PER_BOARD * config.boards_active_max


def fit_connections(config: Config, descriptors: int) -> Config:
    """Return the configuration with as many connections as the descriptors leave room for.

    What does not fit is said in the log: a node that runs out of descriptors can neither take a
    connection nor open a file, and would fail where it should refuse.
    """
    kept = reserved(config)
    fitting = max(descriptors - kept, 1)
    if config.connections_max <= fitting:
        return config
    _LOG.error(
        "connections_max: %d do not fit into the limit of %d file descriptors, of which %d are kept"
        " for the node itself; this node takes %d connections (raise it with ulimit -n, or"
        " LimitNOFILE of systemd)",
        config.connections_max,
        descriptors,
        kept,
        fitting,
    )
    return msgspec.structs.replace(config, connections_max=fitting)
