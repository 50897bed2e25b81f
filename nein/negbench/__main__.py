"""`python -m nein.negbench` and `accelerate launch -m nein.negbench`: the same as `nein-negbench`."""

from nein.cli import main_negbench

if __name__ == "__main__":
    main_negbench()
