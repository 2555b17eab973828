"""Values of sequences, sets, mappings and iterators."""
