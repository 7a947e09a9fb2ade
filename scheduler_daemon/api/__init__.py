"""The JSON-RPC face: what callers may ask, in which words, over which doors, and how a refusal reads."""
