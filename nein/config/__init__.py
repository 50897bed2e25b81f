"""From a dataclass to a command line: options, presets and configuration files, complaints."""
