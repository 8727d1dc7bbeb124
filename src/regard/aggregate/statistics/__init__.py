"""What each head does: figures, types, and how alike heads are."""
