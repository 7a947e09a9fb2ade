"""The rules of the tree, as tests: who may import whom, how large things get, which words are used."""
