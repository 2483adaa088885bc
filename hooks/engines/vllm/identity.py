"""What two copies of a process must not share, renewed in the calling process.

Random number generators of Python, numpy, torch and OpenSSL, names of temporary files, and cached names of the host.
What needs nothing: uuid4, secrets and os.urandom ask the kernel each time; pids and sockets are the sandbox's own.
What stays shared on purpose: the hash seed of str (fixed at start), and vLLM's seed for block hashes, which lets
prefixes be compared across copies.  Requests with a seed of their own use a generator of their own: not touched.
"""

from __future__ import annotations

import os
import platform
import random
import sys
import tempfile
from collections.abc import Mapping


def refresh_process(identity: Mapping[str, str]) -> None:
    """Renew the calling process's share; ``identity`` may hold ``hostname``."""
    random.seed(os.urandom(32))
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed(list(os.urandom(32)))
    if torch := sys.modules.get("torch"):
        _reseed_torch(torch)
    if ssl := sys.modules.get("ssl"):
        # OpenSSL's generators lie in process memory and reseed themselves only when the pid changes, which a copy's
        # does not: without this, two copies would draw the same keys and nonces.
        ssl.RAND_add(os.urandom(32), 32.0)
    tempfile._name_sequence = None  # type: ignore[attr-defined]  # made anew, from urandom, when it is next needed
    platform._uname_cache = None  # type: ignore[attr-defined]  # holds the host's name
    if name := identity.get("hostname"):
        os.environ["HOSTNAME"] = name


def _reseed_torch(torch: object) -> None:
    seed = int.from_bytes(os.urandom(8), "little") >> 1
    torch.default_generator.manual_seed(seed)  # type: ignore[attr-defined]
    cuda = torch.cuda  # type: ignore[attr-defined]
    if cuda.is_initialized():
        cuda.manual_seed_all(seed)
