from hotel.planning import Request, understand


def test_a_request_to_move_names_the_booking_and_both_days():
    request = understand("Please move my booking B104 to 2026-06-10 until 2026-06-12.")
    assert request == Request("move", booking_id="B104", arrival="2026-06-10", departure="2026-06-12")


def test_small_talk_is_no_request():
    assert understand("Nice weather today.") is None
