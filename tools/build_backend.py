"""The build backend: setuptools, with a C compiler from PyPI where the machine has none.

PEP 517 lets a project name its own backend. This one adds a single thing to setuptools: when no
compiler is on the path, it asks for `ziglang` and points CC at it, so that `pip install` works on
a machine without gcc or clang.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403  (the hooks that need no change)


def _has_compiler() -> bool:
    """Tell whether the compiler that the build would call can be found."""
    configured = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    return shutil.which(shlex.split(configured)[0]) is not None


def _needed() -> list[str]:
    return [] if _has_compiler() else ["ziglang>=0.13"]


def _choose_compiler() -> None:
    """Make the build call zig's C compiler where there is no other."""
    if _has_compiler():
        return
    compiler = f"{shlex.quote(sys.executable)} -m ziglang cc"
    os.environ["CC"] = compiler
    os.environ["CXX"] = compiler
    os.environ["LDSHARED"] = f"{compiler} -shared"


def get_requires_for_build_wheel(config_settings=None):
    """Name what a wheel needs to build."""
    return build_meta.get_requires_for_build_wheel(config_settings) + _needed()


def get_requires_for_build_editable(config_settings=None):
    """Name what an editable install needs to build."""
    return build_meta.get_requires_for_build_editable(config_settings) + _needed()


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """Build a wheel, its native modules included."""
    _choose_compiler()
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """Build the native modules in place, the tests' one too, and an editable wheel over them."""
    _choose_compiler()
    os.environ["RANKNODE_BUILD_INTERPOSER"] = "1"
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
