"""Command lines: options declared as dataclasses, presets and configuration files, and their errors."""
