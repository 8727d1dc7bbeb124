"""Public checks that anyone can run on their own modules."""

from regard.testing.block import block_checks, check_block
from regard.testing.image import check_image_mechanism, image_checks
from regard.testing.mechanism import (
    Check,
    ContractError,
    Report,
    check_mechanism,
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
