"""Which hosts there are and which leave, who should own a stream, whom clients are told of, and where chunks go."""
