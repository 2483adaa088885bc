"""Capture: from a running worker to a published snapshot."""
