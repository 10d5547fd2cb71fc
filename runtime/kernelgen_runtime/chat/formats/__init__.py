"""Owns how families of models write tool calls and thoughts, each behind one small interface."""
