"""The ``hotstart`` command line: one file per verb; knows only ``api`` and how to print."""
