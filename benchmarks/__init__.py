"""Measurements of Hotstart: ratios side by side in one run, never a timed test."""
