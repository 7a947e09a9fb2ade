"""Durability: bytes and files, no policy."""
