"""Which hosts there are, what each is elected to, and where chunks go."""
