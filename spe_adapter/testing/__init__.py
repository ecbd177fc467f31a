"""What users test with: operators without Spark and without a sidecar. See `harness`."""

from spe_adapter.testing.harness import NotReproduced, OperatorHarness, check_any_batches

__all__ = ["NotReproduced", "OperatorHarness", "check_any_batches"]
