"""The kernel cache: privacy of its folder, atomic writes, damaged files, trimming, fallbacks."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from stator.base import logs
from stator.runtime import kernel_cache
from stator.runtime.kernel_cache import KernelCache, UnsafeDirectory

KEY = "a" * 40


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    return KernelCache(folder)


def store(cache: KernelCache, content: bytes, *keys: str) -> Path:
    work = cache.work_folder()
    (work / "unit.so").write_bytes(content)
    return cache.store(work / "unit.so", keys or (KEY,))


def mode(path: Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def test_what_was_stored_is_found_and_intact(cache: KernelCache) -> None:
    path = store(cache, b"program" * 100)
    unit = cache.find_unit(KEY)
    assert unit == path.stem
    assert cache.verified_path(unit) == path


def test_a_kernel_never_stored_is_not_found(cache: KernelCache) -> None:
    assert cache.find_unit(KEY) is None


@pytest.mark.parametrize("keep", [0, 1, 50, 699, 700, 720, -1])
def test_a_truncated_unit_is_removed_and_not_given_out(cache: KernelCache, keep: int) -> None:
    path = store(cache, b"program" * 100)
    path.write_bytes(path.read_bytes()[:keep])
    assert cache.verified_path(path.stem) is None
    assert not path.exists()


@pytest.mark.parametrize("at", [0, 350, -1, -20, -45])
def test_a_unit_with_one_changed_byte_is_not_given_out(cache: KernelCache, at: int) -> None:
    path = store(cache, b"program" * 100)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    assert cache.verified_path(path.stem) is None


@pytest.mark.parametrize("text", [b"", b"abc", b"../../../../../../../../../etc/passwd00000", b"\xff" * 40])
def test_a_damaged_index_entry_counts_as_absent(cache: KernelCache, text: bytes) -> None:
    (cache.index / KEY).write_bytes(text)
    assert cache.find_unit(KEY) is None


def test_folders_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATOR_CACHE_DIR", str(tmp_path / "new" / "place"))
    cache = kernel_cache.open_cache()
    assert cache.folder.parent == tmp_path / "new" / "place"
    for folder in (cache.folder, cache.units, cache.index, cache.notes, cache.work_folder()):
        assert mode(folder) == 0o700


@pytest.mark.parametrize("chosen", ["", "relative/path"])
def test_the_default_place_is_the_users_cache_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, chosen: str
) -> None:
    monkeypatch.delenv("STATOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", chosen)
    assert kernel_cache.default_root() == tmp_path / ".cache" / "stator"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert kernel_cache.default_root() == tmp_path / "xdg" / "stator"


def open_with_warning(root: Path) -> KernelCache:
    logs.forget_warnings()
    with pytest.warns(RuntimeWarning, match="cannot keep compiled kernels"):
        cache = kernel_cache.open_cache(root)
    assert root not in cache.folder.parents
    assert mode(cache.folder) == 0o700
    return cache


@pytest.mark.parametrize("bits", [0o770, 0o702, 0o777])
def test_a_folder_others_can_write_is_not_used(tmp_path: Path, bits: int) -> None:
    root = tmp_path / "cache"
    root.mkdir()
    root.chmod(bits)
    open_with_warning(root)
    assert list(root.iterdir()) == []


def test_an_inner_folder_others_can_write_is_not_used(tmp_path: Path) -> None:
    inner = tmp_path / kernel_cache.LAYOUT
    inner.mkdir()
    inner.chmod(0o777)
    open_with_warning(tmp_path)


def test_a_link_planted_in_place_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    """Nobody who can write the root (as in /tmp, sticky) may redirect the cache's writes."""
    root, victim = tmp_path / "root", tmp_path / "victim"
    root.mkdir()
    root.chmod(0o1777)
    victim.mkdir(mode=0o700)
    (root / kernel_cache.LAYOUT).symlink_to(victim)
    open_with_warning(root)
    assert list(victim.iterdir()) == []


def test_links_in_place_of_entries_are_not_followed(cache: KernelCache, tmp_path: Path) -> None:
    path = store(cache, b"program")
    (tmp_path / "entry").write_bytes(path.stem.encode())
    (cache.index / ("b" * 40)).symlink_to(tmp_path / "entry")
    assert cache.find_unit("b" * 40) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    inner = tmp_path / kernel_cache.LAYOUT
    inner.mkdir(mode=0o700)
    os.chown(inner, 12345, 12345)
    with pytest.raises(UnsafeDirectory, match="12345"):
        kernel_cache.check_private(inner)
    open_with_warning(tmp_path)


def test_a_place_that_cannot_be_made_gives_a_temporary_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = open_with_warning(tmp_path / "file")
    store(cache, b"program")
    assert cache.find_unit(KEY) is not None


def test_a_read_only_cache_gives_a_temporary_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, bits: False)  # the superuser may write read-only folders
    open_with_warning(tmp_path)


def test_a_cache_where_no_program_can_be_loaded_gives_a_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=os.ST_NOEXEC))
    open_with_warning(tmp_path)


def test_a_temporary_cache_vanishes_with_its_user(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = open_with_warning(tmp_path / "file")
    folder = cache.folder
    store(cache, b"program")
    del cache
    assert not folder.exists()


def test_opening_an_existing_cache_gives_no_warning(tmp_path: Path) -> None:
    logs.forget_warnings()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = kernel_cache.open_cache(tmp_path / "c")
        store(first, b"program")
        assert kernel_cache.open_cache(tmp_path / "c").find_unit(KEY) is not None


def test_trimming_removes_what_was_used_longest_ago(cache: KernelCache) -> None:
    cache.limit_bytes = 3500
    for number in range(5):
        path = store(cache, bytes([number]) * 1000, f"{number:040d}")
        os.utime(path, (number, number))
    used = cache.find_unit(f"{0:040d}")
    assert used is not None and cache.verified_path(used) is not None  # used now: it must stay
    assert cache.trim() > 0
    kept = [number for number in range(5) if cache.find_unit(f"{number:040d}")]
    assert kept == [0, 4]
    assert sum(path.stat().st_size for path in cache.units.iterdir()) <= cache.limit_bytes


def test_trimming_leaves_a_small_cache_alone(cache: KernelCache) -> None:
    store(cache, b"program")
    assert cache.trim() == 0
    assert cache.find_unit(KEY) is not None


def test_what_a_crash_left_behind_is_removed_after_a_day(cache: KernelCache) -> None:
    crashed, busy = cache.work_folder(), cache.work_folder()
    yesterday = time.time() - 2 * 24 * 3600
    os.utime(crashed, (yesterday, yesterday))
    cache.trim()
    assert not crashed.exists() and busy.exists()


_WRITER = """
import sys
from pathlib import Path
from stator.runtime.kernel_cache import KernelCache
cache = KernelCache(Path(sys.argv[1]))
for turn in range(40):
    for number in range(5):
        work = cache.work_folder()
        (work / "u.so").write_bytes(bytes([number]) * 50_000)
        cache.store(work / "u.so", [f"{number:040d}"])
        unit = cache.find_unit(f"{number:040d}")
        assert unit is not None
        path = cache.verified_path(unit)
        assert path is not None and path.read_bytes()[:50_000] == bytes([number]) * 50_000
"""


def test_several_processes_write_the_same_kernels_at_once(cache: KernelCache) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(cache.folder)], stderr=subprocess.PIPE) for _ in range(4)
    ]
    for writer in writers:
        _, errors = writer.communicate(timeout=120)
        assert writer.returncode == 0, errors.decode()
    for number in range(5):
        unit = cache.find_unit(f"{number:040d}")
        assert unit is not None and cache.verified_path(unit) is not None
    assert not [name for name in os.listdir(cache.index) if name.startswith(".")]
