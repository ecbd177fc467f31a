"""Messages between hosts: connections, frames, requests and their answers."""
