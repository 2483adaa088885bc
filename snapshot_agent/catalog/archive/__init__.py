"""File trees in a file: a strict PAX tar that keeps what overlayfs and tmpfs hold (docs/formats/snapshot.md)."""
