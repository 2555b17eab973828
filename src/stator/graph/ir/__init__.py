"""Functional graphs as data: operator schemas, metadata, printing, clean-up."""
