"""The public names, exactly: adding or dropping one is a decision, made here too."""

import regard

NAMES = """
Apply Attended CaptureWarning Distance Entropy HeadMax HeadMean Histogram Mass Mechanism Received
Recipe Record Reducer RegardError Rows Support TopK Trace Weights attend capture load masks reduce
register_recipe stitch trace
"""


def test_public_names_are_exact():
    assert sorted(regard.__all__) == NAMES.split()
    assert all(hasattr(regard, name) for name in NAMES.split())
