"""The public names, exactly: adding or dropping one is a decision, made here too."""

import pytest

import regard
from regard import translate

NAMES = """
Attended CaptureWarning Distance EditWarning EffectiveKeys Entropy FullWeights HeadMax HeadMean
HeadMin Histogram Mechanism QueryRows ReceivedAttention Recipe Record Reducer RegardError
ResidualStream SegmentWeights Statistic TopK Trace WeightedSum alti attend attention_flow capture
collect combine_heads edit gradient_attention graft head_importance knockout load_trace masks
mean_attention norm_attention patch prune reduce register_recipe relevance rollout stitch trace
"""

TRANSLATE = """
Alignment Checkpoint Config EvaluationOptions Hypothesis ModelConfig SearchOptions Translation
TranslationModel Translator align beam_search build_model check_model compare ensemble evaluate
export load_checkpoint save_checkpoint score train
"""


@pytest.mark.parametrize(("module", "names"), [(regard, NAMES), (translate, TRANSLATE)])
def test_public_names_are_exact(module, names):
    assert sorted(module.__all__) == names.split()
    assert all(hasattr(module, name) for name in names.split())
    assert {*names.split()} <= {*dir(module)}


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"'regard\.translate' has no attribute 'Trained'"):
        _ = translate.Trained
