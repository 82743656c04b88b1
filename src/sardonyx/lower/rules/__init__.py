"""The lowering rules, one file per family of operators. Importing this package registers all of them."""

from importlib import import_module
from pkgutil import iter_modules

for _family in iter_modules(__path__, f"{__name__}."):
    import_module(_family.name)
