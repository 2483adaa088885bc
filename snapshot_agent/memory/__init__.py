"""The memory file and the ways it comes back: mapped or copied."""
