"""Engine plugins: each makes one engine quiesce and resume."""
