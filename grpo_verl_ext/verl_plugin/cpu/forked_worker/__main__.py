"""Start a Ray worker as a fork of a process that has imported torch, verl and vLLM.

Ray runs this folder in the place of ``python``: ``python …/forked_worker default_worker.py --raylet-name=…``.
The first process of a Ray imports the modules of all workers, forks the worker that it was asked for, and
stays as a server; later processes ask it for a fork and end. A worker then starts in 0.5 s instead of 5 to 9.

Where that is not possible (no server, another search path for modules), this process prints why and becomes
a normal Python. The server has an abstract socket, whose name any process of the machine can find or take:
both ends refuse another user's process before they send or read a word.

Nothing of this package is imported here: verl loads it as a plugin, with the other modules.
"""

from __future__ import annotations

import errno
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

_MODULES = (
    "verl.trainer.main_ppo",
    "verl.trainer.ppo.v1",
    "verl.workers.engine_workers",
    "verl.experimental.reward_loop",
    "verl.workers.rollout.vllm_rollout.vllm_async_server",
    "verl.experimental.agent_loop",
)
"""The modules that the workers of a training import, all kinds of workers together."""
_READ_BY_IMPORTS = ("PYTHONPATH", "VERL_PLATFORM", "VERL_USE_EXTERNAL_MODULES", "GRPO_VERL_EXT_PATCHES")
"""A worker with another value of one of these environment variables cannot be a fork of this server."""
_STANDARD_STREAMS = (0, 1, 2)
_RAYLET = "--raylet-name="
"""The argument with the socket of the node's raylet."""
_PATIENCE = 5.0
"""Seconds to wait for a server that has bound its address to begin to listen."""
_ANSWER_SECONDS = 600.0
"""Time limit for a server that still imports: as long as Ray waits for a worker (platform/cpu.yaml)."""

_Worker = dict[str, Any]
"""The process that Ray asked for: ``arguments``, the program's path first, ``environment`` and ``folder``."""


def main(arguments: Sequence[str], modules: Sequence[str] = _MODULES) -> None:
    """Become the server and its forks, ask the running one for a fork, or fall back to a normal Python."""
    worker: _Worker = {"arguments": [*arguments], "environment": dict(os.environ), "folder": os.getcwd()}
    # Each message is received whole, with the streams that were sent with it.
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        raylet = next((word.removeprefix(_RAYLET) for word in arguments if word.startswith(_RAYLET)), None)
        if raylet is None:
            raise OSError(errno.EINVAL, f"no {_RAYLET} among the arguments")
        try:
            listener.bind(address := f"\0{raylet}.fork")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            _ask_for_fork(address, worker)
            return
    except OSError as error:
        print(f"grpo_verl_ext: this worker imports for itself: {error}", file=sys.stderr, flush=True)
        os.execv(sys.executable, [sys.executable, *arguments])
    listener.listen(128)
    _import_all(modules)
    worker = _serve(listener, worker)  # from here on this process is a fork, which becomes the worker
    import numpy as np
    import torch

    os.environ.clear()
    os.environ.update(worker["environment"])
    os.chdir(worker["folder"])
    sys.argv[:] = worker["arguments"]
    sys.path[0] = os.path.dirname(sys.argv[0])
    # Both are set at import, so a fork must set them again; else all forks would draw the same numbers.
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1))
    np.random.seed()
    runpy.run_path(sys.argv[0], run_name="__main__")


def _import_all(modules: Sequence[str]) -> None:
    """Import the modules for all forks; print the error of one that fails, and leave it to its workers.

    Ray's generator of random identifiers is seeded at its first use. Used before a fork, it gives all forks
    the same identifiers, and two workers that make an object of one identifier at the same moment crash.
    Each ``@ray.remote class`` draws one, here from the operating system's random numbers.
    """
    import ray.actor

    drawn = ray.actor.ActorClassID
    ray.actor.ActorClassID = SimpleNamespace(from_random=lambda: drawn(os.urandom(drawn.size())))
    # Garbage collection would take a quarter of the time, and write to pages that forks share.
    gc.disable()
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception:  # noqa: BLE001  # printed here, and raised in the workers that need the module
            traceback.print_exc()
    ray.actor.ActorClassID = drawn
    gc.collect()
    gc.freeze()
    gc.enable()


def _ask_for_fork(address: str, worker: _Worker) -> None:
    """Have the server fork the worker, which takes over this process's standard streams; else OSError."""
    end = time.monotonic() + _PATIENCE
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        while True:
            try:
                connection.connect(address)
                break
            except (ConnectionRefusedError, BlockingIOError):  # it does not listen yet, or many are waiting
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
        _refuse_other_user(connection)
        socket.send_fds(connection, [json.dumps(worker).encode()], _STANDARD_STREAMS)
        if not connection.recv(1):
            raise OSError(errno.ECONNREFUSED, f"{', '.join(_READ_BY_IMPORTS)}: not as in the first worker")


def _refuse_other_user(connection: socket.socket) -> None:
    credentials = struct.Struct("iII")  # process, user, group
    sent = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    if (user := credentials.unpack(sent)[1]) != os.geteuid():
        raise OSError(errno.EPERM, f"the process at the other end is of user {user}")


def _serve(listener: socket.socket, first: _Worker) -> _Worker:
    """Fork for each worker that is asked for while the raylet lives; return, in a fork alone, its worker."""
    raylet, own = os.getppid(), first["environment"]
    # The kernel reaps forks that have ended; a fork itself waits for its children as usual.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    if _is_fork():
        return first
    listener.settimeout(1)
    while os.getppid() == raylet:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            continue
        streams: list[int] = []
        connection.settimeout(1)  # others wait meanwhile, and a request is sent at once
        try:
            _refuse_other_user(connection)
            message, streams, _, _ = socket.recv_fds(connection, 2**20, len(_STANDARD_STREAMS))
            worker: _Worker = json.loads(message)
            moved, others = list(zip(streams, _STANDARD_STREAMS, strict=True)), worker["environment"]
            if all(own.get(name) == others.get(name) for name in _READ_BY_IMPORTS):
                connection.sendall(b"\n")  # fails if the process that asked has ended or imports for itself
                if _is_fork():
                    for stream, number in moved:
                        os.dup2(stream, number)
                    listener.close()
                    return worker
        except (OSError, ValueError, TypeError, KeyError) as error:
            print(f"grpo_verl_ext: no worker for a request: {error}", file=sys.stderr, flush=True)
        finally:
            for stream in streams:
                os.close(stream)
            connection.close()
    os._exit(0)


def _is_fork() -> bool:
    """Fork, and return whether this is the child, in a process group of its own as Ray's workers are."""
    if os.fork():
        return False
    os.setpgid(0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
