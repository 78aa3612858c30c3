"""Owns the gRPC services: requests in, answers out. Decides nothing."""
