from pytest_trace2evolve import World


class HotelTools:
    db: dict

    def find_guest(self, email: str) -> dict:
        return self.db["guests"][email]

    def get_booking(self, booking_id: str) -> dict:
        return self.db["bookings"][booking_id]

    def list_rooms(self, kind: str) -> list:
        return [room for room in self.db["rooms"] if room["kind"] == kind]

    def book_room(self, guest: str, room: str, arrival: str, nights: int) -> str:
        booking = {"guest": guest, "room": room, "arrival": arrival, "nights": nights, "status": "confirmed"}
        return self.db["bookings"].setdefault(f"B{len(self.db['bookings']) + 1}", booking)["status"]

    def move_booking(self, booking_id: str, arrival: str) -> None:
        self.db["bookings"][booking_id]["arrival"] = arrival

    def cancel_booking(self, booking_id: str) -> None:
        """Cancel a booking."""
        self.db["bookings"][booking_id]["status"] = "cancelled"


world = World.from_tools(HotelTools, data="hotel.json")
