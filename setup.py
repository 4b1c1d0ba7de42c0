"""The native modules; everything else about the build stands in pyproject.toml."""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

MODULES = ("event_results", "event_rows", "exact", "keyset", "members", "standings")
HEADERS = (
    "fenwick", "fingerprints", "listing", "memory", "name_table", "order", "order_change", "scores",
    "siphash", "slot_map",
)  # fmt: skip

extensions = cythonize(
    [
        Extension(
            f"actors.{module}",
            [f"actors/{module}.pyx"],
            depends=[f"actors/{header}.h" for header in HEADERS],
            extra_compile_args=["-O3", "-fno-strict-aliasing"],
        )
        for module in MODULES
    ],
    language_level=3,
    annotate=False,
)
if "RANKNODE_BUILD_INTERPOSER" in os.environ:
    # No module, but a library that the tests of durability load before libc; no wheel holds it.
    extensions.append(
        Extension(
            "tests.durability.interposer",
            ["tests/durability/interposer.c"],
            extra_compile_args=["-O2", "-Wall", "-Wextra", "-fvisibility=hidden"],
            extra_link_args=["-pthread"],
        )
    )

setup(ext_modules=extensions)
