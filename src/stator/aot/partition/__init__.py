"""Which values the forward saves, and which the backward computes again."""
