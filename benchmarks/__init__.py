"""Benchmarks that anyone can repeat; one module a question, see ``harness.py`` for the rules."""
