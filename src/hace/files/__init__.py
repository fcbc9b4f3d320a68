"""Bytes in and out: the only gate for files from outside, and files that appear whole or not at all.

Imports `errors` only.
"""
