"""Check a cluster launcher file offline, by Ray's own schema and rules."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml
from ray.autoscaler._private.util import prepare_config, validate_config


def main() -> None:
    """Validate the files named on the command line; the first fault ends with its text."""
    for name in sys.argv[1:]:
        config = yaml.safe_load(Path(name).read_text("utf-8"))
        validate_config(prepare_config(config))
        print(f"{name}: valid")


if __name__ == "__main__":
    main()
