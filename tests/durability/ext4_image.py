"""An ext4 file system in a file, whose power can be cut: a real journal under a real workload.

Owns the image, its loop device and its mount point, all of which are gone after `closed`. A cut is
ext4's own shutdown without a flush of its journal: what it has not yet written to the image is
lost, all later calls fail, and the next mount replays the journal. A disk's own cache is not part
of it, that of `disk_model.py` is. Needs root, loop devices and mkfs.ext4.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.running_node import wait_until

IMAGE_BYTES = 192 << 20
COPY_ATTEMPTS = 20
UNMOUNT_SECONDS_MAX = 20.0

_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN, _IOR('X', 125, __u32)
_WITHOUT_LOG_FLUSH = struct.pack("=I", 2)  # EXT4_GOING_FLAGS_NOLOGFLUSH


class Ext4Image:
    """An image below `directory`; `mounted` is where it is seen, while it is.

    Cutting: `cut_power`, then `remount`. `copied` is another image, as this one is at one instant.
    """

    def __init__(self, directory: Path, source: Path | None = None) -> None:
        directory.mkdir()
        self.file = directory / "image"
        self.mounted = directory / "mounted"
        self.mounted.mkdir()
        if source is None:
            with self.file.open("wb") as file:
                file.truncate(IMAGE_BYTES)
            _run("mkfs.ext4", "-q", "-F", self.file)
        else:
            _run("cp", "--sparse=always", source, self.file)

    def mount(self) -> None:
        """Mount the image; its journal is replayed if its power was cut."""
        _run("mount", "-t", "ext4", "-o", "loop", self.file, self.mounted)

    def cut_power(self) -> None:
        """Let nothing more reach the image; whoever uses it meets errors from now on."""
        descriptor = os.open(self.mounted, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, _WITHOUT_LOG_FLUSH)
        finally:
            os.close(descriptor)

    def remount(self) -> None:
        """Mount the image anew, as after a reboot; whoever used it must have been killed."""
        self._unmount()
        self.mount()

    @contextmanager
    def copied(self, directory: Path) -> Iterator[Ext4Image]:
        """Mount a copy of the image, as it is at one instant, whose writers hold still.

        The kernel may write back by itself meanwhile; two copies in a row that are the same show
        that it did not between the two.
        """
        former = Ext4Image(directory / "copy-0", self.file)
        try:
            for attempt in range(1, COPY_ATTEMPTS):
                copy = Ext4Image(directory / f"copy-{attempt}", self.file)
                same = subprocess.run(["cmp", "-s", former.file, copy.file], check=False)
                former.close()
                former = copy
                if same.returncode == 0:
                    break
            else:
                raise AssertionError("the image does not hold still")
            former.mount()
            yield former
        finally:
            former.close()

    def close(self) -> None:
        """Unmount and remove the image; its loop device goes with the mount."""
        try:
            if os.path.ismount(self.mounted):
                self._unmount()
        except AssertionError:
            _run("umount", "--lazy", self.mounted)  # it goes as soon as its last user does
            raise
        finally:
            shutil.rmtree(self.file.parent)

    def _unmount(self) -> None:
        """Unmount, once the last thread of whoever was killed has let go of its files."""
        command = ["umount", str(self.mounted)]
        wait_until(
            lambda: subprocess.run(command, check=False, capture_output=True).returncode == 0,
            UNMOUNT_SECONDS_MAX,
            f"nobody uses {self.mounted}",
        )


@contextmanager
def new_image(directory: Path) -> Iterator[Ext4Image]:
    """Make and mount an image; nothing of it is left afterwards, whatever happened."""
    image = Ext4Image(directory)
    try:
        image.mount()
        yield image
    finally:
        image.close()


def loop_devices(directory: Path) -> list[str]:
    """List the loop devices behind files below `directory`."""
    listed = subprocess.run(
        ["losetup", "--list", "--noheadings", "--output", "BACK-FILE"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return [line for line in listed.stdout.splitlines() if line.startswith(str(directory))]


def why_not(directory: Path) -> str:
    """Say what is missing to mount images here, nothing if they can be."""
    if os.geteuid() != 0:
        return "only root may mount an image"
    lacking = [name for name in ("mkfs.ext4", "mount", "losetup", "cmp") if not shutil.which(name)]
    if lacking:
        return f"there is no {lacking[0]}"
    try:
        with new_image(directory / "probe"):
            return ""
    except subprocess.CalledProcessError as error:
        return f"no image can be mounted: {error.stderr.decode().strip()}"


def _run(*command: object) -> None:
    subprocess.run(list(map(str, command)), check=True, capture_output=True)
