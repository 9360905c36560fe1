"""Write files and folders that appear complete or not at all, and lock them between processes."""

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from stat import S_IMODE

from filelock import FileLock, Timeout


@contextmanager
def locked(target: Path | str, *, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock ``<target>.lock`` against other processes; it is released even if this one is killed.

    ``on_wait`` is called once if another process holds the lock, before waiting for it.
    """
    lock = FileLock(f"{target}.lock")
    Path(lock.lock_file).parent.mkdir(parents=True, exist_ok=True)
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        on_wait()
        held = lock.acquire()
    with held:
        yield


@contextmanager
def alone_in(folder: Path, error: type[Exception]) -> Iterator[None]:
    """Hold the lock ``<folder>/.lock``, and raise the error at once if another process holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        held = FileLock(folder / ".lock").acquire(timeout=0)
    except Timeout as other:
        said = f"another process works in {folder}; wait for it, or type folder=<a new folder>"
        raise error(said) from other
    with held:
        yield


def check_folder(path: Path | str) -> None:
    """Raise NotADirectoryError where the path, or a part of it, is a file."""
    if any(os.path.isfile(each) for each in (path, *Path(path).parents)):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


@contextmanager
def appearing(target: Path, *, aside: Path | None = None) -> Iterator[Path]:
    """Give a new folder to fill; it becomes ``target`` when the block succeeds and is removed when it fails.

    The folder that is there is named ``aside`` then; without that name it is an error. Call it under
    ``locked(target)``: then no process still uses the folder that a killed run left, and it is removed first.
    """
    if target.exists() and aside is None:
        raise FileExistsError(target)
    folder = target.with_name(f".{target.name}.partial")
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir()
    try:
        yield folder
        for file in folder.rglob("*"):  # safetensors writes its own as 0o600, and not by the umask
            if file.is_file() and not file.is_symlink():
                file.chmod(S_IMODE(file.stat().st_mode | folder.stat().st_mode & 0o666))
        if target.exists() and aside is not None:
            target.rename(aside)
        folder.rename(target)
    except BaseException as error:
        shutil.rmtree(folder)
        if number := re.search(r"\(os error (\d+)\)", str(error)):  # of safetensors, no `OSError`
            raise OSError(int(number[1]), os.strerror(int(number[1])), str(target)) from error
        raise


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, or of the names and the SHA-256 of all files of a folder."""
    digest = hashlib.sha256()
    if path.is_dir():
        for each in sorted(each for each in path.rglob("*") if each.is_file()):
            digest.update(f"{sha256(each)}  {each.relative_to(path).as_posix()}\n".encode())
        return digest.hexdigest()
    with path.open("rb") as file:
        while part := file.read(2**20):
            digest.update(part)
    return digest.hexdigest()


def sha256_here(name: str | Path) -> str | None:
    """Return `sha256` of what has this name, in which ~ is a home; None: it is not on this machine."""
    path = Path(os.path.expanduser(name))
    return sha256(path) if path.exists() else None


def module_file(name: str) -> Path | None:
    """Return the source file of a module that can be imported here; None: there is none.

    Packages that it is in are imported, and it is not.
    """
    try:
        spec = find_spec(name)
    except ModuleNotFoundError:
        return None
    return Path(spec.origin) if spec and spec.has_location and spec.origin else None


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file atomically: after a kill, or for a reader, it has the old content or the new one.

    Call it where no other process writes ``path``: then ``.<name>.unfinished`` can only be left from a run
    that was killed.
    """
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        with unfinished.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException as error:
        with suppress(OSError):  # the first error is the one to report
            unfinished.unlink()
        if isinstance(error, OSError) and error.errno:
            error.filename = str(path)  # a full disk is noticed while writing, where no name is known
        raise


def in_one_sentence(error: OSError, elsewhere: str | None = None) -> str | None:
    """Say which file or folder cannot be read or written, why, and what to type for another place.

    An error that names no file, such as that of a connection, is None.
    """
    said = f"{error.filename or 'a file'}: {error.strerror}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return f"{said}. Free space there, and run the same command again; what was finished is kept"
    if error.filename is None or error.errno == errno.ENOENT:
        return said if error.filename else None
    if Path(os.fsdecode(error.filename)).is_relative_to(cache_root()):
        elsewhere = "export GRPO_VERL_EXT_CACHE=<another folder>"
    to_type = f". Type: {elsewhere}" if elsewhere else ""
    return f"{said}; valid is a place that this user may read and write{to_type}"


def cache_root() -> Path:
    """Return ``$GRPO_VERL_EXT_CACHE``, else ``grpo_verl_ext`` in ``$XDG_CACHE_HOME`` or in ``~/.cache``."""
    own, of_user = (os.environ.get(name) for name in ("GRPO_VERL_EXT_CACHE", "XDG_CACHE_HOME"))
    return Path(own) if own else Path(of_user or Path.home() / ".cache", "grpo_verl_ext")
