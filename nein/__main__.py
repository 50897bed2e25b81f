"""Runs the command line for `python -m nein` and `accelerate launch -m nein`."""

from nein.cli import main

if __name__ == "__main__":
    main()
