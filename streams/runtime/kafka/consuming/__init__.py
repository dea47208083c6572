"""From the broker to the handlers: which record is due, which may be handed over, and which offset may be committed."""
