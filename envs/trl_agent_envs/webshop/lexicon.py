"""The words of the embedded catalogue: departments, product types, attributes, options, brands. Data only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProductType:
    """One kind of product.

    query: the shop's name for the kind, as a shopper would type it (plural).
    category: the path under which it is filed.
    noun: what a title calls it.
    attributes: what a product of this kind may be or have.
    options: option type -> values to choose from.
    price: lowest and highest price in dollars.
    """

    query: str
    category: str
    noun: str
    attributes: tuple[str, ...]
    options: dict[str, tuple[str, ...]]
    price: tuple[int, int]


COLORS = (
    "black",
    "white",
    "navy",
    "grey",
    "red",
    "green",
    "blue",
    "pink",
    "brown",
    "purple",
    "yellow",
    "beige",
)
CLOTHES_SIZES = ("x-small", "small", "medium", "large", "x-large", "xx-large")
SHOE_SIZES = ("6", "7", "8", "9", "10", "11")
PACKS = ("pack of 1", "pack of 2", "pack of 3", "pack of 4", "pack of 6", "pack of 12")
BOTTLES = ("1 ounce", "2 ounce", "4 ounce", "8 ounce", "12 ounce", "16 ounce")
FLAVORS = (
    "chocolate",
    "vanilla",
    "lemon",
    "mango",
    "honey",
    "cinnamon",
    "ginger",
    "peach",
    "berry",
    "coconut",
)
SCENTS = ("lavender", "rose", "citrus", "cedar", "jasmine", "mint", "unscented", "sandalwood")
CABLE_LENGTHS = ("3 feet", "6 feet", "10 feet", "15 feet", "25 feet")
CAPACITIES = ("16 gb", "32 gb", "64 gb", "128 gb", "256 gb", "512 gb")
ROOM_SIZES = ("2 x 3 feet", "4 x 6 feet", "5 x 8 feet", "8 x 10 feet", "9 x 12 feet")
BED_SIZES = ("twin", "full", "queen", "king")
STYLES = ("classic", "modern", "rustic", "slim", "vintage", "sport")

BRANDS = (
    "Norvik", "Althea", "Bramwell", "Cindra", "Dovetail", "Elmora", "Farrow", "Galdano", "Hallbrook", "Ivanto",
    "Jorvale", "Kestrel", "Lumora", "Marlowe", "Nimbusa", "Orlanda", "Pinecrest", "Quillon", "Ravello", "Solvane",
    "Tamsin", "Umbrel", "Vantiva", "Westmere", "Yarrow", "Zephira", "Aldine", "Bexley", "Corvane", "Dunmore",
    "Everdell", "Fenwick", "Greyling", "Hollis", "Isling", "Juniper", "Kelso", "Larkin", "Mistral", "Northam",
)  # fmt: skip

_WEAR = ("machine washable", "light weight", "long sleeve", "short sleeve", "loose fit", "slim fit", "quick drying",
         "hand wash", "stretch fabric", "soft cotton", "tummy control", "high waist", "fleece lined")  # fmt: skip
_SHOES = ("rubber sole", "memory foam", "non slip", "arch support", "steel toe", "wide width", "leather lining",
          "waterproof", "breathable mesh", "ankle strap", "shock absorbing", "slip on")  # fmt: skip
_GADGET = ("fast charging", "noise cancelling", "water resistant", "wireless", "high definition", "hands free",
           "easy install", "heavy duty", "long battery life", "plug and play", "dual band", "compact size")  # fmt: skip
_CABLE = ("gold plated", "high speed", "heavy duty", "tangle free", "fast charging", "double shielded", "flexible",
          "braided nylon", "right angle", "gold connector", "plug and play", "ultra thin")  # fmt: skip
_HOME = ("solid wood", "easy assembly", "space saving", "machine washable", "stain resistant", "non slip",
         "steel frame", "fade resistant", "eco friendly", "heavy duty", "easy clean", "mid century")  # fmt: skip
_FOOD = ("gluten free", "sugar free", "non gmo", "organic", "low carb", "dairy free", "keto friendly", "low sodium",
         "plant based", "nut free", "high protein", "ready to eat")  # fmt: skip
_SKIN = ("paraben free", "cruelty free", "long lasting", "sulfate free", "fragrance free", "tea tree", "anti aging",
         "dermatologist tested", "alcohol free", "vitamin c", "hyaluronic acid", "sensitive skin")  # fmt: skip

_FASHION, _ELECTRONICS, _GARDEN = "Clothing, Shoes & Jewelry", "Electronics", "Home & Kitchen"
_GROCERY, _BEAUTY = "Grocery & Gourmet Food", "Beauty & Personal Care"


def _type(
    query: str,
    category: str,
    noun: str,
    attributes: tuple[str, ...],
    price: tuple[int, int],
    **options: tuple[str, ...],
) -> ProductType:
    named = {name.replace("_", " "): values for name, values in options.items()}
    return ProductType(query, category, noun, attributes, named, price)


DEPARTMENTS: dict[str, tuple[ProductType, ...]] = {
    "fashion": (
        _type("hiking boots", f"{_FASHION} › Shoes › Outdoor", "Hiking Boots", _SHOES, (39, 119), color=COLORS, size=SHOE_SIZES),
        _type("running shoes", f"{_FASHION} › Shoes › Athletic", "Running Shoes", _SHOES, (29, 109), color=COLORS, size=SHOE_SIZES),
        _type("sandals", f"{_FASHION} › Shoes › Sandals", "Sandals", _SHOES, (15, 59), color=COLORS, size=SHOE_SIZES),
        _type("t-shirts", f"{_FASHION} › Men › Shirts", "T-Shirt", _WEAR, (9, 35), color=COLORS, size=CLOTHES_SIZES),
        _type("hoodies", f"{_FASHION} › Men › Hoodies", "Hoodie", _WEAR, (19, 69), color=COLORS, size=CLOTHES_SIZES),
        _type("leggings", f"{_FASHION} › Women › Leggings", "Leggings", _WEAR, (12, 49), color=COLORS, size=CLOTHES_SIZES),
        _type("rain jackets", f"{_FASHION} › Women › Coats", "Rain Jacket", _WEAR, (29, 99), color=COLORS, size=CLOTHES_SIZES),
        _type("dresses", f"{_FASHION} › Women › Dresses", "Dress", _WEAR, (19, 89), color=COLORS, size=CLOTHES_SIZES),
    ),
    "electronics": (
        _type("headphones", f"{_ELECTRONICS} › Audio › Headphones", "Headphones", _GADGET, (19, 159), color=COLORS, style=STYLES),
        _type("bluetooth speakers", f"{_ELECTRONICS} › Audio › Speakers", "Bluetooth Speaker", _GADGET, (19, 139), color=COLORS),
        _type("security cameras", f"{_ELECTRONICS} › Video › Surveillance", "Security Camera", _GADGET, (29, 149), style=STYLES),
        _type("memory cards", f"{_ELECTRONICS} › Computers › Memory", "Memory Card", _GADGET, (9, 89), capacity=CAPACITIES),
        _type("tablets", f"{_ELECTRONICS} › Computers › Tablets", "Tablet", _GADGET, (79, 249), color=COLORS, capacity=CAPACITIES),
        _type("usb cables", f"{_ELECTRONICS} › Accessories › Cables", "USB Cable", _CABLE, (5, 29), color=COLORS, size=CABLE_LENGTHS),
        _type("hdmi cables", f"{_ELECTRONICS} › Video › Cables", "HDMI Cable", _CABLE, (6, 39), size=CABLE_LENGTHS),
        _type("phone chargers", f"{_ELECTRONICS} › Phones › Chargers", "Phone Charger", _CABLE, (9, 45), color=COLORS, style=STYLES),
    ),
    "garden": (
        _type("area rugs", f"{_GARDEN} › Decor › Rugs", "Area Rug", _HOME, (25, 199), color=COLORS, size=ROOM_SIZES),
        _type("bed frames", f"{_GARDEN} › Furniture › Bedroom", "Bed Frame", _HOME, (89, 299), color=COLORS, size=BED_SIZES),
        _type("bar stools", f"{_GARDEN} › Furniture › Kitchen", "Bar Stool", _HOME, (39, 149), color=COLORS, style=STYLES),
        _type("coffee tables", f"{_GARDEN} › Furniture › Living Room", "Coffee Table", _HOME, (49, 229), color=COLORS),
        _type("bookshelves", f"{_GARDEN} › Furniture › Office", "Bookshelf", _HOME, (39, 189), style=STYLES),
        _type("throw pillows", f"{_GARDEN} › Decor › Pillows", "Throw Pillow", _HOME, (9, 39), color=COLORS, size=PACKS),
        _type("shower curtains", f"{_GARDEN} › Bath › Curtains", "Shower Curtain", _HOME, (12, 45), color=COLORS),
        _type("table lamps", f"{_GARDEN} › Lighting › Lamps", "Table Lamp", _HOME, (19, 99), color=COLORS, style=STYLES),
    ),
    "grocery": (
        _type("protein bars", f"{_GROCERY} › Snacks › Bars", "Protein Bar", _FOOD, (9, 39), flavor_name=FLAVORS, size=PACKS),
        _type("granola", f"{_GROCERY} › Breakfast › Cereals", "Granola", _FOOD, (6, 29), flavor_name=FLAVORS, size=PACKS),
        _type("herbal teas", f"{_GROCERY} › Beverages › Tea", "Herbal Tea", _FOOD, (5, 25), flavor_name=FLAVORS, size=PACKS),
        _type("ground coffee", f"{_GROCERY} › Beverages › Coffee", "Ground Coffee", _FOOD, (8, 35), flavor_name=FLAVORS),
        _type("cookies", f"{_GROCERY} › Snacks › Cookies", "Cookies", _FOOD, (5, 25), flavor_name=FLAVORS, size=PACKS),
        _type("popcorn", f"{_GROCERY} › Snacks › Popcorn", "Popcorn", _FOOD, (5, 25), flavor_name=FLAVORS, size=PACKS),
        _type("fruit jams", f"{_GROCERY} › Spreads › Jams", "Fruit Jam", _FOOD, (5, 22), flavor_name=FLAVORS),
        _type("soup mixes", f"{_GROCERY} › Soups › Mixes", "Soup Mix", _FOOD, (5, 25), size=PACKS),
    ),
    "beauty": (
        _type("face creams", f"{_BEAUTY} › Skin Care › Face", "Face Cream", _SKIN, (9, 59), scent=SCENTS, size=BOTTLES),
        _type("body lotions", f"{_BEAUTY} › Skin Care › Body", "Body Lotion", _SKIN, (7, 35), scent=SCENTS, size=BOTTLES),
        _type("shampoos", f"{_BEAUTY} › Hair Care › Shampoo", "Shampoo", _SKIN, (8, 39), scent=SCENTS, size=BOTTLES),
        _type("lip balms", f"{_BEAUTY} › Makeup › Lips", "Lip Balm", _SKIN, (4, 19), scent=SCENTS, size=PACKS),
        _type("hand soaps", f"{_BEAUTY} › Bath › Soap", "Hand Soap", _SKIN, (4, 22), scent=SCENTS, size=BOTTLES),
        _type("sunscreens", f"{_BEAUTY} › Skin Care › Sun", "Sunscreen", _SKIN, (8, 39), size=BOTTLES),
        _type("face masks", f"{_BEAUTY} › Skin Care › Masks", "Face Mask", _SKIN, (6, 35), size=PACKS),
        _type("bath bombs", f"{_BEAUTY} › Bath › Additives", "Bath Bomb", _SKIN, (9, 35), scent=SCENTS, size=PACKS),
    ),
}  # fmt: skip
"""Department (the `category` of a record) -> its product types."""
