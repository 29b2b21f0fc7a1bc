"""Fuzzing of whatever reads bytes that others wrote."""
