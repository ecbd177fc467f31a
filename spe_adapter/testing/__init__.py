"""What users test with: operators without Spark and without a sidecar."""
