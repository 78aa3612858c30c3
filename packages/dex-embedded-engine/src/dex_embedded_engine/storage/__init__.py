"""Owns what is on the disk: the connection, the schema, and the named operations on it."""
