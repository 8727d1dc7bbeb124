"""The public names, exactly: adding or dropping one is a decision, made here too."""

import regard

NAMES = """
Apply Around Attended CaptureWarning Distance Entropy HeadMax HeadMean HeadMin Histogram Mass
Mechanism Received Recipe Record Reducer RegardError Rows Support TopK Trace Weights alti attend
capture flow fuse gradient_attention graft head_importance load masks mean_attention norm_attention
prune reduce register_recipe relevance rollout stitch trace
"""


def test_public_names_are_exact():
    assert sorted(regard.__all__) == NAMES.split()
    assert all(hasattr(regard, name) for name in NAMES.split())
