"""Peers: each function uses one library as its own documentation recommends."""
