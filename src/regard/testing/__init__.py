"""Public checks that anyone can run on their own modules."""

from regard.testing.checks import (
    Check,
    ContractError,
    Report,
    block_checks,
    check_block,
    check_image_mechanism,
    check_mechanism,
    image_checks,
    mechanism_checks,
)

__all__ = [
    "Check",
    "ContractError",
    "Report",
    "block_checks",
    "check_block",
    "check_image_mechanism",
    "check_mechanism",
    "image_checks",
    "mechanism_checks",
]
