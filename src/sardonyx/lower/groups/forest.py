"""Decision trees."""

from __future__ import annotations

from sardonyx.lower.groups.base import Group, View


class Forest(Group):
    """out[n, target] = the weights of the leaves that row n of x reaches, combined over the trees in order.

    Leaves are numbered before inner nodes; a leaf is its own child. From node i the path continues with
    ``children[i, 1]`` if x[n, ``features[i]``] compares as true with ``splits[i]`` (or is NaN and ``tracks[i]`` is not
    0), else with ``children[i, 0]``. ``weights``: (leaves, targets), in the type of ``out``. All tables are dense.
    """

    x: View
    roots: View
    features: View
    splits: View
    children: View
    tracks: View | None
    weights: View
    mode: str
    """The comparison: ``le``, ``lt``, ``ge``, ``gt``, ``eq`` or ``ne``."""
    combine: str
    """``sum``, ``mean``, ``min`` or ``max``."""
    out: View

    @property
    def reads(self) -> tuple[View, ...]:
        tracks = () if self.tracks is None else (self.tracks,)
        return (self.x, self.roots, self.features, self.splits, self.children, *tracks, self.weights)

    @property
    def writes(self) -> tuple[View, ...]:
        return (self.out,)
