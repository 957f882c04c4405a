"""An environment as a model might write one: which order holds a product, and what its parcel's number is."""

import random

FIRST = ["Ada", "Bo", "Cleo", "Dag", "Esra", "Finn", "Gita", "Hugo", "Ines", "Jiro", "Kaja", "Lev"]
LAST = ["Abara", "Brandt", "Castell", "Dvorak", "Egede", "Ferro", "Gunnar", "Hopper", "Ivers", "Jansky"]
STREETS = ["Quarry Lane", "Beacon Row", "Tanner Street", "Orchard Close", "Mill Bank", "Harbour Walk"]
THINGS = [
    "Clay Teapot",
    "Canvas Tent",
    "Brass Compass",
    "Oak Ladder",
    "Rain Barrel",
    "Felt Hat",
    "Tin Whistle",
    "Cork Board",
    "Wool Rug",
    "Paper Lantern",
    "Steel Whisk",
    "Bamboo Mat",
    "Copper Kettle",
    "Linen Apron",
    "Glass Carafe",
    "Stone Mortar",
    "Silk Kite",
    "Leather Satchel",
    "Birch Sled",
    "Marble Chess Set",
]
SHADES = ["red", "blue", "green", "white", "black", "amber", "grey", "violet"]
SIZES = ["small", "medium", "large", "huge"]
WAYS = [
    "Which parcel is my {0} in? I would like its tracking number.",
    "I am waiting for the {0} I bought. What is the tracking number of that parcel?",
    "Could you look up the tracking number for my {0}?",
    "My neighbour may have taken in the {0}. Tell me its tracking number, please.",
    "The carrier asks me for the tracking number of the {0}. What is it?",
]


def number(drawn, digits):
    return str(drawn.randrange(10 ** (digits - 1), 10**digits))


def address(drawn):
    return {
        "address1": f"{drawn.randrange(10, 999)} {drawn.choice(STREETS)}",
        "address2": "",
        "city": drawn.choice(["Boise", "Provo", "Ogden", "Yakima"]),
        "country": "USA",
        "state": drawn.choice(["ID", "OR", "UT", "GA"]),
        "zip": number(drawn, 5),
    }


def product(drawn, name):
    variants = {}
    for shade in drawn.sample(SHADES, drawn.randrange(2, 5)):
        item = number(drawn, 10)
        variants[item] = {
            "item_id": item,
            "options": {"colour": shade, "size": drawn.choice(SIZES)},
            "available": drawn.random() < 0.8,
            "price": round(drawn.uniform(8, 240), 2),
        }
    return {"name": name, "product_id": number(drawn, 10), "variants": variants}


def bought(drawn, one):
    variant = drawn.choice(list(one["variants"].values()))
    return {
        "name": one["name"],
        "product_id": one["product_id"],
        "item_id": variant["item_id"],
        "price": variant["price"],
        "options": dict(variant["options"]),
    }


def order(drawn, user, items):
    made = "#W" + number(drawn, 7)
    return {
        "order_id": made,
        "user_id": user["user_id"],
        "address": dict(user["address"]),
        "items": items,
        "status": drawn.choice(["processed", "delivered"]),
        "fulfillments": [{"tracking_id": [number(drawn, 12)], "item_ids": [one["item_id"] for one in items]}],
        "payment_history": [
            {
                "transaction_type": "payment",
                "amount": round(sum(one["price"] for one in items), 2),
                "payment_method_id": next(iter(user["payment_methods"])),
            }
        ],
    }


def scenario(seed, difficulty):
    drawn = random.Random(f"parcel/{seed}")
    first, last = drawn.choice(FIRST), drawn.choice(LAST)
    card = "credit_card_" + number(drawn, 7)
    user_id = f"{first.lower()}_{last.lower()}_{number(drawn, 4)}"
    email = f"{first.lower()}.{last.lower()}{number(drawn, 4)}@post.test"
    user = {
        "user_id": user_id,
        "name": {"first_name": first, "last_name": last},
        "address": address(drawn),
        "email": email,
        "payment_methods": {
            card: {"source": "credit_card", "id": card, "brand": "visa", "last_four": number(drawn, 4)}
        },
        "orders": [],
    }
    names = drawn.sample(THINGS, drawn.randrange(6, 10))
    products = [product(drawn, name) for name in names]
    count = 2 + (difficulty > 2) + (difficulty > 4)
    shares = [products[place::count] for place in range(count)]
    orders = [order(drawn, user, [bought(drawn, one) for one in share]) for share in shares]
    user["orders"] = [one["order_id"] for one in orders]
    place = drawn.randrange(count)
    meant = orders[place]
    thing = drawn.choice(meant["items"])["name"]
    says = drawn.choice(WAYS).replace("{0}", thing)
    calls = [{"name": "find_user_id_by_email", "arguments": {"email": email}}]
    calls.append({"name": "get_user_details", "arguments": {"user_id": user_id}})
    for one in orders[: place + 1]:
        calls.append({"name": "get_order_details", "arguments": {"order_id": one["order_id"]}})
    known = {1: len(calls) - 1, 2: 2, 3: 2, 4: 1, 5: 0}[difficulty]
    history = [{"agent": "Hi! How can I help you today?"}, {"customer": f"{says} My email is {email}."}]
    history += [{"call": one} for one in calls[:known]]
    tracking = meant["fulfillments"][0]["tracking_id"][0]
    return {
        "tables": {
            "users": {user_id: user},
            "orders": {one["order_id"]: one for one in orders},
            "products": {one["product_id"]: one for one in products},
        },
        "identity": {"email": f"My email is {email}.", "name": f"{first} {last}, {user['address']['zip']}."},
        "turns": [
            {
                "says": f"{says} My email is {email}.",
                "calls": calls,
                "about": [user_id, meant["order_id"]],
                "details": {"order": "I do not have the number of the order."},
                "answer": tracking,
            }
        ],
        "history": history,
        "goal": {
            "tracking": tracking,
            "order": meant["order_id"],
            "others": [one["fulfillments"][0]["tracking_id"][0] for one in orders if one is not meant],
            "begins": len(history) + known,
            "calls": len(calls) - known,
        },
    }


def grade(goal, trace, solved):
    own = trace[goal["begins"] :]
    calls = [call for one in own for call in one["calls"]]
    texts = [one["content"] for one in own if one["role"] == "assistant" and not one["calls"]]
    if len(calls) > goal["calls"] + 2 or any(other in text for other in goal["others"] for text in texts):
        return 0.0
    if any(len(text) > 240 for text in texts):
        return 0.0
    read = any(call["arguments"].get("order_id") == goal["order"] for call in calls)
    if not read:
        return 0.0
    message = any(goal["tracking"] in text for text in texts)
    return 1.0 if message and solved else 0.2


def shortcut(goal):
    return [{"agent": "Your parcel is on its way; the tracking number is in your mail."}] * 3
