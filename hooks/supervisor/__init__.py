"""Pid 1 of every sandbox."""
