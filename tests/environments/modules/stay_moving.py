"""An environment of a project's own hotel as a model might write one: the stay in a room is moved."""

import random

NAMES = ["ada", "bo", "cleo", "dag", "esra", "finn", "gita", "hugo", "ines", "jiro", "kaja", "lev"]
RATES = ["flexible", "fixed", "weekend", "winter", "family", "group", "late"]


def scenario(seed, difficulty):
    drawn = random.Random(f"stay/{seed}")
    email = f"{drawn.choice(NAMES)}.{drawn.choice(NAMES)}@post.test"
    rooms = drawn.sample(range(100, 400), 3)
    keys = [f"B{number}" for number in drawn.sample(range(1000, 9999), 3)]
    days = [f"2031-0{drawn.randrange(1, 10)}-{drawn.randrange(10, 29)}" for _ in range(4)]
    bookings = {
        key: {
            "guest": email,
            "room": str(room),
            "arrival": day,
            "nights": drawn.randrange(1, 9),
            "rate": drawn.choice(RATES),
            "status": "confirmed",
        }
        for key, room, day in zip(keys, rooms, days, strict=False)
    }
    place = drawn.randrange(3)
    calls = [{"name": "find_guest", "arguments": {"email": email}}]
    calls += [{"name": "get_booking", "arguments": {"booking_id": key}} for key in keys[: place + 1]]
    calls.append({"name": "move_booking", "arguments": {"booking_id": keys[place], "arrival": days[3]}})
    says = f"Please move my stay in room {rooms[place]} to {days[3]}. My email is {email}."
    known = len(calls) - 1 if difficulty == 1 else 5 - difficulty if difficulty > 3 else 1
    return {
        "tables": {"guests": {email: {"email": email, "bookings": keys}}, "bookings": bookings},
        "turns": [{"says": says, "calls": calls, "about": [email, keys[place]]}],
        "history": [{"agent": "Hello!"}, {"customer": says}, *({"call": call} for call in calls[:known])],
        "goal": {"begins": 2 + 2 * known, "wanted": calls[-1]["arguments"], "other": keys[place - 1]},
    }


def grade(goal, trace, solved):
    own = [call for one in trace[goal["begins"] :] for call in one["calls"]]
    moved = [call["arguments"] for call in own if call["name"] == "move_booking"]
    if len(own) > 6 or len(moved) != 1 or moved[0].get("booking_id") != goal["wanted"]["booking_id"]:
        return 0.0
    return 1.0 if solved else 0.5


def shortcut(goal):
    return [{"call": {"name": "move_booking", "arguments": {**goal["wanted"], "booking_id": goal["other"]}}}]
