"""`python -m nein` and `accelerate launch -m nein`: the same as `nein`."""

from nein.cli import main

if __name__ == "__main__":
    main()
