"""Functional graphs as data: schemas, metas, texts, verification, clean-up."""
