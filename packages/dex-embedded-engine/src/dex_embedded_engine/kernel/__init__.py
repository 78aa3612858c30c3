"""Owns the engine's one thread of decisions: events in, a committed transaction, outputs out.

Synchronous and deterministic: given the same events at the same times on the same database it
does the same. Threads, sockets and the wall clock are outside, so a test can drive it directly.
"""
