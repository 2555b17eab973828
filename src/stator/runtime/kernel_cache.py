"""Compiled kernels on disk: private to the user, keyed by content, safe against crashes and other processes.

A unit is a shared object with several kernels, or the machine code of one kernel for a GPU; an index entry maps a
kernel's key to its unit. Nothing here runs a compiler or loads a unit.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
import stat
import tempfile
import time
import weakref
from collections.abc import Iterable
from pathlib import Path

from stator.base import logs
from stator.base.errors import CompileError

LAYOUT = "kernels-1"  # change it with the storage format
LIMIT_BYTES = 1 << 30
_MAGIC = b"STATOR-UNIT-1"
_TRAILER = len(_MAGIC) + 32 + 8
_STALE_WORK_SECONDS = 24 * 3600
_TOUCH_SECONDS = 3600
_BUILDS_BETWEEN_TRIMS = 100


class UnsafeDirectory(OSError):
    """Other users can write to the cache's folder."""


def default_root() -> Path:
    """Return STATOR_CACHE_DIR, else the user's cache folder by the XDG rules."""
    chosen = os.environ.get("STATOR_CACHE_DIR")
    if chosen:
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "")
    # XDG: ignore relative paths.
    return (Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()) / "stator"


def check_private(folder: Path) -> None:
    """Raise UnsafeDirectory unless `folder` is a real directory that only this user can write."""
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode):
        raise UnsafeDirectory(f"{folder} is not a directory but a link or a file")
    if status.st_uid != os.geteuid():
        raise UnsafeDirectory(f"{folder} belongs to user {status.st_uid}, not to you")
    if status.st_mode & 0o022:
        raise UnsafeDirectory(f"{folder} can be written by others (mode {stat.S_IMODE(status.st_mode):o})")


def _check_parent(folder: Path) -> None:
    """Refuse a root where other users could replace our folder: they may write there only under the sticky bit."""
    status = os.stat(folder)
    if status.st_uid not in (0, os.geteuid()):
        raise UnsafeDirectory(f"{folder} belongs to user {status.st_uid}")
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        raise UnsafeDirectory(f"{folder} can be written by others (mode {stat.S_IMODE(status.st_mode):o})")


class KernelCache:
    """A folder of units and index entries. All methods are safe under several threads and processes.

    is_temporary: whether it belongs to this process alone.
    """

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES, is_temporary: bool = False) -> None:
        self.folder = folder
        self.is_temporary = is_temporary
        self.limit_bytes = limit_bytes
        self.units = folder / "units"
        self.index = folder / "index"
        self.notes = folder / "notes"
        self._builds = itertools.count()
        for part in (self.units, self.index, self.notes):
            _make_private(part)

    # --- reading ---

    def find_unit(self, kernel_key: str) -> str | None:
        """Return the name of the unit that holds a kernel, or None. The unit may be gone or damaged: see
        `verified_path`."""
        found = _read(self.index / kernel_key)
        if found is None:
            return None
        name = found[0].decode("ascii", "replace")
        return name if len(name) == 40 and name.isalnum() else None

    def verified_path(self, unit: str) -> Path | None:
        """Return the path of a unit with intact contents, or None. A damaged unit is removed and never loaded."""
        path = self.units / f"{unit}.so"
        return None if self._verified(path) is None else path

    def find_data(self, kernel_key: str) -> bytes | None:
        """Return what was stored with `store_data`, if it is there and intact."""
        unit = self.find_unit(kernel_key)
        data = None if unit is None else self._verified(self.units / f"{unit}.bin")
        return None if data is None else data[:-_TRAILER]

    def _verified(self, path: Path) -> bytes | None:
        found = _read(path)
        if found is None:
            return None
        data, status = found
        if not _intact(data):
            logs.log("code", "cached unit %s is damaged and will be built again", path)
            _unlink(path)
            return None
        if time.time() - status.st_mtime > _TOUCH_SECONDS:
            with contextlib.suppress(OSError):  # records the last use for trimming, not needed in a read-only folder
                os.utime(path)
        return data

    # --- writing ---

    def work_folder(self) -> Path:
        """Make a private work folder on the cache's file system; the caller removes it. Raises OSError if read-only."""
        return Path(tempfile.mkdtemp(prefix="work-", dir=self.folder))

    def store(self, shared_object: Path, kernel_keys: Iterable[str]) -> Path:
        """Move a new shared object into the cache and index its kernels. Returns its path there. One rename makes the
        complete object visible; of several writers any may win."""
        data = shared_object.read_bytes()
        unit = hashlib.sha256(data).hexdigest()[:40]
        with open(shared_object, "ab") as file:
            file.write(_trailer(data))
        path = self.units / f"{unit}.so"
        os.replace(shared_object, path)
        for key in kernel_keys:
            _write_atomically(self.index / key, unit.encode())
        return path

    def store_data(self, kernel_key: str, data: bytes) -> None:
        """Keep the machine code of one kernel. Raises OSError."""
        unit = hashlib.sha256(data).hexdigest()[:40]
        _write_atomically(self.units / f"{unit}.bin", data + _trailer(data))
        _write_atomically(self.index / kernel_key, unit.encode())

    def trim_at_times(self) -> None:
        """Trim after the first build of the process, then after each hundredth: it asks for every unit's size."""
        if next(self._builds) % _BUILDS_BETWEEN_TRIMS == 0:
            self.trim()

    def trim(self) -> int:
        """Remove least recently used units until the rest fits, and leftovers of crashes. Returns the bytes removed."""
        self._remove_stale_work()
        entries = []
        for entry in _entries(self.units):
            with contextlib.suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                entries.append((status.st_mtime_ns, status.st_size, entry.path))
        total = sum(size for _, size, _ in entries)
        if total <= self.limit_bytes:
            return 0
        removed = 0
        for _, size, path in sorted(entries):
            if total - removed <= self.limit_bytes * 3 // 4:
                break
            _unlink(Path(path))
            removed += size
        self._remove_dangling_entries()
        return removed

    def _remove_stale_work(self) -> None:
        now = time.time()
        for entry in _entries(self.folder):
            with contextlib.suppress(OSError):
                if entry.name.startswith("work-") and now - entry.stat().st_mtime > _STALE_WORK_SECONDS:
                    shutil.rmtree(entry.path, ignore_errors=True)

    def _remove_dangling_entries(self) -> None:
        present = {entry.name.partition(".")[0] for entry in _entries(self.units)}
        for entry in _entries(self.index):
            if entry.name.startswith(".") or self.find_unit(entry.name) not in present:
                _unlink(Path(entry.path))


def open_cache(root: Path | None = None) -> KernelCache:
    """Return the user's cache; if that is unsafe or not usable, a private temporary one, with one warning."""
    root = root or default_root()
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_parent(root)
        _make_private(root / LAYOUT)
        cache = KernelCache(root / LAYOUT)
        if not os.access(cache.folder, os.W_OK):
            raise PermissionError(f"{cache.folder} is read-only")
        if os.statvfs(cache.folder).f_flag & getattr(os, "ST_NOEXEC", 0):
            raise PermissionError("its file system is mounted noexec, so that no program there can be loaded")
        return cache
    except OSError as error:
        return temporary_cache(root, error)


def temporary_cache(root: Path, error: OSError) -> KernelCache:
    """Return a cache for this process alone, removed at exit; `error` made the cache in `root` unusable. Raises
    CompileError if there is no temporary folder."""
    logs.warn_once(
        f"cache:{root}",
        f"stator cannot keep compiled kernels in {root} ({error}); they are built anew in every process. "
        "Set STATOR_CACHE_DIR to a folder of yours that only you can write.",
    )
    try:
        folder = Path(tempfile.mkdtemp(prefix="stator-"))
        cache = KernelCache(folder, is_temporary=True)
    except OSError as without:
        raise unusable("there is no temporary folder for compiled kernels", without) from without
    weakref.finalize(cache, _remove_own_folder, str(folder), os.getpid())
    return cache


def unusable(what: str, error: OSError) -> CompileError:
    return CompileError(
        "runtime", f"{what}: {error}", hint="free space there, or set STATOR_CACHE_DIR or TMPDIR to another folder"
    )


def _remove_own_folder(folder: str, pid: int) -> None:
    if os.getpid() == pid:  # a forked child shares its parent's folder
        shutil.rmtree(folder, ignore_errors=True)


def _make_private(folder: Path) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    check_private(folder)


def _trailer(data: bytes) -> bytes:
    return hashlib.sha256(data).digest() + len(data).to_bytes(8, "little") + _MAGIC


def _intact(data: bytes) -> bool:
    if len(data) < _TRAILER or not data.endswith(_MAGIC):
        return False
    end = len(data) - _TRAILER
    length = int.from_bytes(data[end + 32 : end + 40], "little")
    return length == end and hashlib.sha256(memoryview(data)[:end]).digest() == data[end : end + 32]


def _read(path: Path) -> tuple[bytes, os.stat_result] | None:
    """Contents and status, in half the system calls of a file object: a first call reads hundreds of files."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None  # absent, or no regular file of this user
    try:
        status = os.fstat(descriptor)
        data = os.read(descriptor, status.st_size)
        while len(data) < status.st_size and (more := os.read(descriptor, status.st_size - len(data))):
            data += more
        return data, status
    finally:
        os.close(descriptor)


def _write_atomically(path: Path, data: bytes) -> None:
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name[:16]}-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    except BaseException:
        _unlink(Path(temporary))
        raise


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []
