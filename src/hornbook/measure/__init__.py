"""Measurements that a user can repeat."""
