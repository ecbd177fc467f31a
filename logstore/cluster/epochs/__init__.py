"""Epochs, readers and groups over hosts: where they are decided and what they hold."""
