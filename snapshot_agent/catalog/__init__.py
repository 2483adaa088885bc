"""Snapshots at rest: manifest, store, verification."""
