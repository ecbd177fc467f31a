"""The registry of complete checkpoints: what they are made of, what may go, which host loads a unit."""
