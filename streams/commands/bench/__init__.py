"""Measuring: the `bench` commands."""
