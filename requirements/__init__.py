"""Locks of what is installed, and what is said of them: their sizes, and bills of materials."""
