"""Owns grammars that bind generated text: compiled once, followed token by token."""
