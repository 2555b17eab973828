"""Decides which values the forward saves and which the backward computes again, and splits the joint graph."""
