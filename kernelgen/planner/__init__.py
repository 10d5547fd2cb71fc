"""Owns planning: which ops share a kernel, what that costs, where buffers live, and why."""
