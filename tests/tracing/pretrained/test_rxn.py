"""RXNMapper: attention whose truth is known, because atoms are neither made nor lost.

Schwaller et al., "Extraction of organic chemistry grammar from unsupervised learning of chemical
reactions", Science Advances 2021: one head of this ALBERT, layer 10 head 5, maps each atom of the
product to the atom of the reactants that it was. The truth below was written by hand.
"""

import pytest
import torch
from loaders import folder, rxn_albert
from reactions import REACTIONS, atoms, sides
from transformers import AlbertModel

import regard

LAYER = "encoder.albert_layer_groups.0.albert_layers.0.attention"


def mapped(weights: torch.Tensor, tokens: list[str]) -> list[tuple[int, int]]:
    """For each atom of the product: its number, and that of the reactant atom it reads."""
    before, after = sides(tokens)
    block = weights[after][:, before]  # (product atom, reactant atom)
    return list(enumerate(block.argmax(-1).tolist()))


@pytest.fixture(scope="module")
def model():
    return rxn_albert()[0]


@pytest.mark.parametrize("name", REACTIONS)
def test_atoms_of_the_product_read_the_atoms_they_were(model, name):
    reaction, old, new = REACTIONS[name]
    tokens, ids = rxn_albert()[1](reaction)
    assert len(atoms(tokens)) == len(old) + len(new), "the truth has a letter for each atom"
    with torch.no_grad():
        trace = regard.trace(model, ids)
    record = trace[f"{LAYER}#11"]  # layer 10: one module runs for all twelve
    assert (record.path, record.call) == (LAYER, 11)
    pairs = mapped(record.weights()[0, 5], tokens)
    assert "".join(old[j] for _, j in pairs) == new


def test_the_calls_of_one_shared_module_are_told_apart(model):
    _, ids = rxn_albert()[1](REACTIONS["suzuki"][0])
    place = folder("rxnmapper") / "models/transformers/albert_heads_8_uspto_all_1310k"
    twin = AlbertModel.from_pretrained(
        place, add_pooling_layer=False, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        plain = model(ids).last_hidden_state
        trace = regard.trace(model, ids)
        want = twin(ids, output_attentions=True).attentions
    assert trace.names() == [LAYER] + [f"{LAYER}#{call}" for call in range(2, 13)]
    assert len(trace[LAYER]) == 12
    assert torch.equal(trace.output.last_hidden_state, plain)
    for got, true in zip(trace.attentions, want, strict=True):
        torch.testing.assert_close(got, true, atol=1e-5, rtol=0)
