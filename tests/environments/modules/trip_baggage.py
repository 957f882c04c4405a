"""An airline environment as a model might write one: bags are added to the trip that the customer means."""

import random

FIRST = ["Ada", "Bo", "Cleo", "Dag", "Esra", "Finn", "Gita", "Hugo", "Ines", "Jiro", "Kaja", "Lev"]
LAST = ["Abara", "Brandt", "Castell", "Dvorak", "Egede", "Ferro", "Gunnar", "Hopper", "Ivers", "Jansky"]
CITIES = {
    "SEA": "Seattle",
    "DEN": "Denver",
    "MSP": "Minneapolis",
    "PHX": "Phoenix",
    "BOS": "Boston",
    "IAH": "Houston",
}
LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"
WAYS = [
    "I would like to add {0} checked bags to my trip to {1}.",
    "Please put {0} more checked bags on my flight to {1}.",
    "For the journey to {1} I need {0} further checked bags.",
]


def person(drawn):
    born = f"{drawn.randrange(1950, 2004)}-0{drawn.randrange(1, 10)}-1{drawn.randrange(10)}"
    return {"first_name": drawn.choice(FIRST), "last_name": drawn.choice(LAST), "dob": born}


def trip(drawn, user_id, traveller, card, place):
    origin = drawn.choice([code for code in CITIES if code != place])
    price, bags = drawn.randrange(80, 300), drawn.randrange(3)
    flight = {"flight_number": f"HAT{drawn.randrange(700, 999)}", "origin": origin, "destination": place}
    return {
        "reservation_id": "".join(drawn.choice(LETTERS) for _ in range(6)),
        "user_id": user_id,
        "origin": origin,
        "destination": place,
        "flight_type": "one_way",
        "cabin": "basic_economy",
        "flights": [{**flight, "date": f"2024-05-{drawn.randrange(17, 30)}", "price": price}],
        "passengers": [traveller],
        "payment_history": [{"payment_id": card, "amount": price + 50 * bags}],
        "created_at": f"2024-05-0{drawn.randrange(1, 10)}T1{drawn.randrange(10)}:20:00",
        "total_baggages": bags,
        "nonfree_baggages": bags,
        "insurance": "no",
        "status": None,
    }


def scenario(seed, difficulty):
    drawn = random.Random(f"baggage/{seed}")
    traveller = person(drawn)
    user_id = f"{traveller['first_name']}_{traveller['last_name']}_{drawn.randrange(1000, 9999)}".lower()
    card = f"credit_card_{drawn.randrange(10**6, 10**7)}"
    places = drawn.sample(list(CITIES), 2 + (difficulty > 2) + (difficulty > 4))
    trips = [trip(drawn, user_id, traveller, card, place) for place in places]
    number = drawn.randrange(len(trips))
    meant, bags = trips[number], drawn.randrange(2, 5)
    user = {
        "user_id": user_id,
        "name": {"first_name": traveller["first_name"], "last_name": traveller["last_name"]},
        "address": {
            "address1": f"{drawn.randrange(10, 999)} Quarry Lane",
            "address2": "",
            "city": "Boise",
            "country": "USA",
            "state": "ID",
            "zip": str(drawn.randrange(10000, 99999)),
        },
        "email": f"{user_id}@post.test",
        "dob": traveller["dob"],
        "payment_methods": {
            card: {"source": "credit_card", "id": card, "brand": "visa", "last_four": "1234"}
        },
        "saved_passengers": [],
        "membership": "regular",
        "reservations": [one["reservation_id"] for one in trips],
    }
    wanted = {
        "reservation_id": meant["reservation_id"],
        "total_baggages": meant["total_baggages"] + bags,
        "nonfree_baggages": meant["nonfree_baggages"] + bags,
        "payment_id": card,
    }
    calls = [{"name": "get_user_details", "arguments": {"user_id": user_id}}]
    for one in trips[: number + 1]:
        calls.append(
            {"name": "get_reservation_details", "arguments": {"reservation_id": one["reservation_id"]}}
        )
    calls.append({"name": "update_reservation_baggages", "arguments": wanted})
    known = {1: len(calls) - 1, 2: 2, 3: 1, 4: 1, 5: 0}[difficulty]
    says = drawn.choice(WAYS).replace("{0}", str(bags)).replace("{1}", CITIES[meant["destination"]])
    says = f"{says} My user id is {user_id}, and my credit card pays for it."
    history = [{"agent": "Hi! How can I help you today?"}, {"customer": says}]
    history += [{"call": call} for call in calls[:known]]
    return {
        "tables": {"users": {user_id: user}, "reservations": {one["reservation_id"]: one for one in trips}},
        "turns": [
            {
                "says": says,
                "calls": calls,
                "about": [user_id, meant["reservation_id"]],
                "details": {
                    "payment": "With my credit card.",
                    "order": "I do not know the reservation's id.",
                },
            }
        ],
        "history": history,
        "goal": {
            "user": user_id,
            "wanted": wanted,
            "other": next(one["reservation_id"] for one in trips if one is not meant),
            "begins": len(history) + known,
            "calls": len(calls) - known,
        },
    }


def grade(goal, trace, solved):
    own = [call for one in trace[goal["begins"] :] for call in one["calls"]]
    changes = [call for call in own if call["name"] == "update_reservation_baggages"]
    if len(own) > goal["calls"] + 3 or len(changes) > 1:
        return 0.0
    if changes:
        if changes[0]["arguments"].get("reservation_id") != goal["wanted"]["reservation_id"]:
            return 0.0
        return 1.0 if solved else 0.5
    return 0.2 if any(call["arguments"].get("user_id") == goal["user"] for call in own) else 0.0


def shortcut(goal):
    arguments = {**goal["wanted"], "reservation_id": goal["other"]}
    return [{"call": {"name": "update_reservation_baggages", "arguments": arguments}}]
