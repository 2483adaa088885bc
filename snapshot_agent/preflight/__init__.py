"""What would make a capture or a restore fail, found before anything is disturbed."""
