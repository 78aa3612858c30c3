"""Owns the Steps of a session, one file each. Nothing here knows a framework or storage."""
