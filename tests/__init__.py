"""The tests, one folder a tier; DESIGN.md says which tier holds what."""
