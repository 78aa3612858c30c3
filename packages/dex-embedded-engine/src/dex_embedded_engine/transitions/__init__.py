"""Owns what an event does to a run: state and event in, changed state and effects out.

Pure: no storage, no network, no clock (`Change.now` is given), no randomness (ids are given).
What cannot be driven from a test with a made-up clock does not belong here.
"""
