"""`python -m nein` and `accelerate launch -m nein`: the same as `nein-eval`."""

from nein.cli import main_eval

if __name__ == "__main__":
    main_eval()
