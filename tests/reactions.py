"""Reactions whose atoms were mapped by hand.

Each has the letters of the reactants' atoms and of the product's: an atom keeps its letter, atoms
that symmetry makes equal share one, and those that leave have a dot.
"""

REACTIONS = {
    "ester": ("CCO.CC(=O)Cl>>CCOC(C)=O", "abcdef.", "abcedf"),
    "amide": ("CCN.CC(=O)Cl>>CCNC(C)=O", "abcdef.", "abcedf"),
    "branched ester": ("CC(O)CC.CC(=O)Cl>>CCC(C)OC(C)=O", "abcdefgh.", "edbacgfh"),
    "anisole": ("CI.Oc1ccccc1>>COc1ccccc1", "a.bcdefed", "abcdefed"),
    "benzylamine": ("BrCc1ccccc1.CN>>CNCc1ccccc1", ".abcdedcfg", "fgabcdedc"),
    "acetanilide": ("Nc1ccccc1.CC(=O)Cl>>CC(=O)Nc1ccccc1", "abcdedcfgh.", "fghabcdedc"),
    "reductive amination": ("O=Cc1ccccc1.CN>>CNCc1ccccc1", ".abcdedcfg", "fgabcdedc"),
    "suzuki": (
        "Brc1ccccc1.OB(O)c1ccncc1>>c1ccc(-c2ccncc2)cc1",
        ".abcdcb...efghgf",
        "dcbaefghgfbc",
    ),
}

#: More of them, for studies; the first eight are all mapped right by the model's own head.
MORE = {
    "fischer ester": ("CC(=O)O.CCCO>>CCCOC(C)=O", "abc.defg", "defgbac"),
    "ether": ("CCCBr.CO>>CCCOC", "abc.de", "abced"),
    "sulfonamide": ("CS(=O)(=O)Cl.NC>>CNS(C)(=O)=O", "abcc.de", "edbacc"),
    "substitution": ("Fc1ccncc1.CN>>CNc1ccncc1", ".abcdcbef", "efabcdcb"),
    "benzyl ether": (
        "BrCc1ccccc1.Oc1ccccc1>>c1ccc(COc2ccccc2)cc1",
        ".abcdedcfghijih",
        "edcbafghijihcd",
    ),
    "acid amide": ("CC(=O)O.NCC>>CCNC(C)=O", "abc.def", "fedbac"),
    "deprotection": ("CC(C)(C)OC(=O)NCC>>CCN", ".......abc", "cba"),
}


def atoms(tokens: list[str]) -> list[int]:
    """Places of the atoms among tokens."""
    return [i for i, token in enumerate(tokens) if token[0].isalpha()]


def sides(tokens: list[str]) -> tuple[list[int], list[int]]:
    """Places of the reactants' atoms and of the product's."""
    arrow = tokens.index(">>")
    places = atoms(tokens)
    return [i for i in places if i < arrow], [i for i in places if i > arrow]
