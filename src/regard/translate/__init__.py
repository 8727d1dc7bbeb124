"""Translation whose alignments can be read: data, models, training, search, alignment, scores."""
