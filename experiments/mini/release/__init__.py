"""What ships: checkpoints, cards, family.json and the catalogue."""
