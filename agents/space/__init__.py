"""What can be chosen: actions, the model catalogue, and the texts that describe an action (App. B.2)."""
