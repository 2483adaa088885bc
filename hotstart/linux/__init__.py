"""Doors to the Linux kernel that Python's standard library lacks; no policy."""
