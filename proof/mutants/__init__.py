"""Mutation tests: each comparison, sum and write of the product is broken once, and the tests must notice."""
