"""`accelerate launch -m nein.benchmarks.negbench`: the same as `nein-negbench`."""

from nein.cli import main_negbench

if __name__ == "__main__":
    main_negbench()
