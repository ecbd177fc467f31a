"""What several rooms of tests share: real sidecars, a real Kafka."""
