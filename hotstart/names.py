"""Every name that two parts must agree on: environment variables, paths, file names.  Their only home."""

from __future__ import annotations

HOME_ENV = "HOTSTART_HOME"
"""Directory of sandboxes, snapshots and caches; default DEFAULT_HOME."""
DEFAULT_HOME = "/var/lib/hotstart"

CRIU_ENV = "HOTSTART_CRIU"
"""Directory tree that holds CRIU, its loader and libraries; default HOME/criu/tree."""

SUBNET_ENV = "HOTSTART_SUBNET"
"""IPv4 network (at most /16) that local sandboxes take their /30 links from."""
DEFAULT_SUBNET = "10.231.0.0/16"

# --- inside a sandbox -------------------------------------------------------------------------------------------
CONTROL_ENV = "HOTSTART_CONTROL"
"""Set in every worker: the control directory (inside the sandbox)."""
CONTROL_PATH = "/run/hotstart/control"
"""Where the control directory is mounted in every sandbox."""
ENGINE_ENV = "HOTSTART_ENGINE"
"""auto (default) or none: whether engine plugins attach themselves."""

AGENT_DIR = "agent"
"""Control directory part that only the agent (root) writes."""
WORKER_DIR = "worker"
"""Control directory part that the worker's user writes."""

ROOT_PID = 100
"""Pid of the worker's root process (the launcher stub) in its pid namespace: clear of what a placeholder uses."""
CRIU_FIRST_PID = 20000
"""CRIU's own processes take pids from here on, clear of the image's."""

MEMORY_NAME = "hotstart-memory"
"""Name under which the memory file stands in CRIU's images and is inherited by CRIU."""
