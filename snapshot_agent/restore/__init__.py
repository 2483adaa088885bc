"""Restore: from a snapshot to a running worker in a placeholder."""
