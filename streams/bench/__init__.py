"""Measurements of the streams."""
