"""Serializers: the form of what goes in and comes out. Rows are named by `id`, which is their UUID."""
