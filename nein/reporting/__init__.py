"""Figures as tables, pages and pictures."""
