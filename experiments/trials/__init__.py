"""Policies on outcomes: the loop, who competes, what a run earned."""
