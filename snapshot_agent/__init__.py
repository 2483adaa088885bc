"""Everything on the node that captures and restores workers; ``api`` is its façade."""
