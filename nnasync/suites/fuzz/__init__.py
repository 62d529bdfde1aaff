"""Fuzzing of devices: changed models, requests, memory, cache files and files of models."""
