"""Several rooms and a broker on one machine."""
