"""Everything that runs inside the worker's container: supervisor, launcher, control protocol, engine plugins.

Imports ``hotstart``'s ground floor and the standard library only (``engines`` may import its engine).
"""
