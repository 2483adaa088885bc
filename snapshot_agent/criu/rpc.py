"""A conversation with ``criu swrk``: one request, notifications answered on the way, one answer.

Protocol: protobuf messages over SOCK_SEQPACKET (CRIU, images/rpc.proto).  A notification that is answered with failure
makes CRIU undo: a dump resumes its source, a restore kills what it had made.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from google.protobuf.message import DecodeError

from hotstart.clock import Deadline
from hotstart.errors import HotstartError
from hotstart.reasons import CRIU_UNUSABLE
from hotstart.snapshot_agent.criu import images_pb2 as pb
from hotstart.snapshot_agent.criu.options import NOTIFY

_MAX_ANSWER = 1 << 20
Notified = Callable[[str, int], None]
"""Called with the notification's name (``post-dump``, ``pre-resume``…) and a pid; raising makes CRIU undo."""


def converse(
    channel: socket.socket, request: pb.Request, deadline: Deadline, notified: Notified
) -> tuple[pb.Answer, list[tuple[str, float]]]:
    """Send ``request`` and serve notifications until CRIU answers.

    Returns the answer (which may tell of a failure) and the monotonic time of each notification.  An exception of
    ``notified`` is raised again after CRIU has undone its work.  Raises ``deadline``; ``criu-unusable`` if CRIU dies.
    """
    moments: list[tuple[str, float]] = []
    failure: BaseException | None = None
    _send(channel, request)
    while True:
        answer = _receive(channel, deadline)
        if answer.type != NOTIFY:
            if failure is not None:
                raise failure
            return answer, moments
        moments.append((answer.notify.script, time.monotonic()))
        try:
            if failure is None:
                notified(answer.notify.script, answer.notify.pid)
        except BaseException as error:  # noqa: BLE001 - CRIU must be told before anything unwinds
            failure = error
        _send(channel, pb.Request(type=NOTIFY, notify_success=failure is None))


def _send(channel: socket.socket, request: pb.Request) -> None:
    try:
        channel.send(request.SerializePartialToString())
    except ConnectionError:
        raise HotstartError(CRIU_UNUSABLE, "CRIU has ended in the middle of the conversation") from None


def _receive(channel: socket.socket, deadline: Deadline) -> pb.Answer:
    channel.settimeout(max(0.001, deadline.remaining()))
    try:
        data = channel.recv(_MAX_ANSWER)
    except ConnectionError:
        data = b""
    except TimeoutError:
        deadline.check()
        raise
    if not data:
        raise HotstartError(CRIU_UNUSABLE, "CRIU ended without an answer")
    answer = pb.Answer()
    try:
        answer.ParseFromString(data)
    except DecodeError:
        raise HotstartError(CRIU_UNUSABLE, "CRIU's answer is not valid") from None
    return answer
