"""Ports that engines listen on: one block of ports per executor process on a machine."""

from __future__ import annotations

import socket
from collections.abc import Collection

# Below the ephemeral port range, so that no client socket can take a port before the engine, after
# its start-up time, listens on it.
_FIRST_PORT, _BLOCK, _BLOCKS = 20_000, 200, 60


class NoFreePort(OSError):
    """There is no free block of ports, or not enough free ports in this executor's block."""


class EnginePorts:
    """The block of ports of this executor. A listening socket on the block's first port is the
    lock. Engines inherit it, so a block stays locked until its executor and its engines have ended.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._lock: socket.socket | None = None
        self._first = 0
        self._next = 1

    @property
    def lock_fds(self) -> tuple[int, ...]:
        """The lock of the block, as `pass_fds` of an engine; empty before the first `take`."""
        return () if self._lock is None else (self._lock.fileno(),)

    def close(self) -> None:
        """Release the block. Living engines that inherited its lock keep it."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def take(self, used: Collection[int], count: int = 1) -> tuple[int, ...]:
        """`count` consecutive free ports that are not in `used`. Raises NoFreePort if there are not
        enough."""
        if self._lock is None:
            self._lock = self._lock_block()
        for offset in range(_BLOCK - 1):
            at = (self._next - 1 + offset) % (_BLOCK - 1)
            ports = tuple(range(self._first + 1 + at, self._first + 1 + at + count))
            inside = ports[-1] < self._first + _BLOCK
            if inside and all(port not in used and _is_free(self._host, port) for port in ports):
                # Rotate through the block, because clients may still send to a recently freed port.
                self._next = at + 1 + count
                return ports
        raise NoFreePort(f"no free port from {self._first} to {self._first + _BLOCK - 1}")

    def _lock_block(self) -> socket.socket:
        for block in range(_BLOCKS):
            first = _FIRST_PORT + block * _BLOCK
            lock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                lock.bind((self._host, first))
                lock.listen(1)
            except OSError:
                lock.close()
                continue
            self._first = first
            return lock
        raise NoFreePort("every block of ports for engines is taken")


def _is_free(host: str, port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
