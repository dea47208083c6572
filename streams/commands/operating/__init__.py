"""Steering, checking and repairing a deployment: `catalogue`, `objective`, `keys`, `dead-letters`, `audit`, others."""
