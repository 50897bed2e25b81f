"""A package of somebody else, which offers things by entry points."""


def install(folder, groups):
    """Makes `folder` an installed package. groups: group -> name -> "module:attribute"."""
    info = folder / "elsewhere-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    lines = []
    for group, points in groups.items():
        lines += [f"[{group}]", *(f"{name} = {place}" for name, place in points.items())]
    (info / "entry_points.txt").write_text("\n".join([*lines, ""]))
