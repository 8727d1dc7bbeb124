"""The four tokens that every vocabulary begins with."""

PAD, BEGIN, END, UNKNOWN = 0, 1, 2, 3
NAMES = ("<pad>", "<s>", "</s>", "<unk>")
