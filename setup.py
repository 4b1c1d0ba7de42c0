"""The native modules; everything else about the build stands in pyproject.toml."""

from Cython.Build import cythonize
from setuptools import Extension, setup

MODULES = ("exact", "keyset", "members", "standings")
HEADERS = (
    "fenwick", "fingerprints", "listing", "memory", "name_table", "order", "order_change", "scores",
    "siphash", "slot_map",
)  # fmt: skip

setup(
    ext_modules=cythonize(
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
)
