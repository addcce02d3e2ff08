"""WebShop: a shop to search, browse and buy in. `env.WebShopEnv` is the environment, `Shop` its world."""

from .catalog import Catalog, CatalogError, Product
from .compat import Compat
from .goals import Goal
from .raw import RawCatalog
from .reward import RewardInfo
from .shop import Shop
from .splits import splits

__all__ = [
    "Catalog",
    "CatalogError",
    "Compat",
    "Goal",
    "Product",
    "RawCatalog",
    "RewardInfo",
    "Shop",
    "splits",
]
