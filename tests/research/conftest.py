"""As tests of training."""

from tests.train.conftest import leave_torch_as_it_was

__all__ = ["leave_torch_as_it_was"]
