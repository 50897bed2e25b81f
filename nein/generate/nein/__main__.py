"""`accelerate launch -m nein.generate.nein`: the same as `nein-build`."""

from nein.cli import main_build

if __name__ == "__main__":
    main_build()
