"""CRIU as a tool: where it is, how it is called, and its image files."""
