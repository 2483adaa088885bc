"""Hotstart: a warmed-up LLM worker is captured once and thawed in a fraction of a second.

The modules beside this file are the ground floor: words and kernel doors that several parts share.  They import the
standard library alone, because they also run inside the worker's container.  ``hotstart.hooks`` and
``hotstart.snapshot_agent`` are the directories of those names at the top of the repository (docs/decisions/0001).
"""

__version__ = "0.1.0"
