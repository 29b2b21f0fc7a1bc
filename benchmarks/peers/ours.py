"""How this project gives the same windows, beside the peers of ``windows.py``."""
