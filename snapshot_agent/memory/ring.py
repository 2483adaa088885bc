"""A door to io_uring for reads of one file: many in flight, awaited without holding Python's lock.

liburing's waiting calls keep the interpreter's lock; so completions are awaited by poll(2) on the ring's descriptor,
which gives every wait an end as well.
"""

from __future__ import annotations

import errno
import select
from dataclasses import dataclass
from typing import Any

_CANCEL_SECONDS = 1.0
_abandoned: list[Any] = []
"""Rings, with their buffers, whose reads did not end when they were cancelled: the kernel may still write into them."""


@dataclass
class _Read:
    fd: int
    buffer: memoryview
    offset: int
    iovec: Any


class ReadRing:
    """Reads into buffers of the caller; one thread uses it."""

    def __init__(self, depth: int) -> None:
        """Raises OSError where io_uring is refused (ENOSYS, EPERM, ENOMEM) or liburing is not installed (ENOSYS)."""
        try:
            import liburing
        except ImportError as error:
            raise OSError(errno.ENOSYS, f"the liburing package cannot be used: {error}") from None
        self._lib = liburing
        self._ring = liburing.Ring()
        liburing.io_uring_queue_init(2 * depth, self._ring)
        self._poll = select.poll()
        self._poll.register(self._ring.ring_fd, select.POLLIN)
        self._entry = liburing.Cqe()
        self._reads: dict[int, _Read] = {}

    @property
    def pending(self) -> int:
        """Number of reads in flight."""
        return len(self._reads)

    def read(self, token: int, fd: int, buffer: memoryview, offset: int) -> None:
        """Start to fill ``buffer`` from ``offset``; ``token`` (unique among those in flight) names the read."""
        read = _Read(fd, buffer, offset, self._lib.Iovec([buffer]))
        self._reads[token] = read
        entry = self._lib.io_uring_get_sqe(self._ring)
        self._lib.io_uring_prep_readv(entry, fd, read.iovec, offset)
        # on a thread of the kernel's: a read that blocked or copied within submit would hold the interpreter's lock
        self._lib.io_uring_sqe_set_flags(entry, self._lib.IOSQE_ASYNC)
        self._lib.io_uring_sqe_set_data64(entry, token)
        self._lib.io_uring_submit(self._ring)

    def wait(self, seconds: float) -> list[int]:
        """Tokens of finished reads, as soon as there is one; an empty list after ``seconds``.

        A short read is continued.  Raises OSError as the read did, and OSError(ENODATA) at the end of the file.
        """
        finished = self._collect()
        if not finished and self._reads and self._poll.poll(seconds * 1000):
            finished = self._collect()
        return finished

    def close(self) -> None:
        """Cancel what is in flight and give the ring back."""
        if self._reads:
            self._cancel()
        if self._reads:
            _abandoned.append((self._ring, self._reads))
        else:
            self._lib.io_uring_queue_exit(self._ring)

    def _collect(self) -> list[int]:
        finished = []
        for token, count in self._completions():
            read = self._reads.pop(token)
            if count == len(read.buffer):
                finished.append(token)
            elif count in (-errno.EINTR, -errno.EAGAIN):
                self.read(token, read.fd, read.buffer, read.offset)
            elif count < 0:
                raise OSError(-count, f"io_uring read: {errno.errorcode.get(-count, -count)}")
            elif count == 0:
                raise OSError(errno.ENODATA, "the file ends before the data")
            else:
                self.read(token, read.fd, read.buffer[count:], read.offset + count)
        return finished

    def _completions(self) -> list[tuple[int, int]]:
        found = []
        for _ in range(self._lib.io_uring_cq_ready(self._ring)):
            self._lib.io_uring_peek_cqe(self._ring, self._entry)
            completion = self._entry[0]
            token = completion.user_data
            try:
                count = completion.res
            except OSError as error:
                count = -(error.errno or errno.EIO)
            self._lib.io_uring_cqe_seen(self._ring, completion)
            if token in self._reads:
                found.append((token, count))
        return found

    def _cancel(self) -> None:
        entry = self._lib.io_uring_get_sqe(self._ring)
        if entry is None:
            return
        self._lib.io_uring_prep_cancel64(
            entry, 0, self._lib.IORING_ASYNC_CANCEL_ANY | self._lib.IORING_ASYNC_CANCEL_ALL
        )
        self._lib.io_uring_sqe_set_data64(entry, (1 << 64) - 1)
        self._lib.io_uring_submit(self._ring)
        tries = 20
        while self._reads and tries:
            tries -= 1
            if self._poll.poll(_CANCEL_SECONDS * 1000 / 20):
                for token, _count in self._completions():
                    del self._reads[token]
