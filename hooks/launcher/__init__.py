"""The stub that is the root of the dumped tree and starts the worker's command."""
