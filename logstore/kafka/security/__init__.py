"""Who may talk to a sidecar: TLS on its listeners, SASL logins, and the users with their credentials."""
