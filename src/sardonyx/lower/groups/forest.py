"""Decision trees."""

from __future__ import annotations

from dataclasses import dataclass

from sardonyx.lower.groups.base import Group, View


@dataclass(frozen=True)
class Forest(Group):
    """out[n, target] = the weights of the leaves that row n of x reaches, combined tree after tree.

    Nodes are numbered leaves first; a leaf is its own child. At node i, the way on is ``children[i, 1]`` where x[n,
    ``features[i]``] and ``splits[i]`` compare as ``mode`` says, or the former is NaN and ``tracks[i]`` is not 0, else
    ``children[i, 0]``. ``weights``: (leaves, targets), in the type of ``out``. All of these lie dense.
    """

    x: View
    roots: View
    features: View
    splits: View
    children: View
    tracks: View | None
    weights: View
    mode: str
    """``le``, ``lt``, ``ge``, ``gt``, ``eq`` or ``ne``."""
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
