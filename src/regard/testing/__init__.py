"""Public checks that anyone can run on their own modules."""

from regard.testing.mechanism import (
    Check,
    ContractError,
    Report,
    check_mechanism,
    mechanism_checks,
)

__all__ = ["Check", "ContractError", "Report", "check_mechanism", "mechanism_checks"]
