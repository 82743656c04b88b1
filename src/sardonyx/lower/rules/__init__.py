"""How each operator is lowered: one file per family. Importing this package registers the rules of all of them."""

from importlib import import_module
from pkgutil import iter_modules

for _family in iter_modules(__path__, f"{__name__}."):
    import_module(_family.name)
