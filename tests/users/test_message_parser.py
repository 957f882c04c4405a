"""The message parser: sentence by sentence, in the words of agents of many manners."""

import pytest

from pytest_trace2evolve.records.task import Slot
from pytest_trace2evolve.users.message_parser import find_ids, parse_message

EMAIL, NAME, ORDER, ITEMS, OPTIONS, REASON, PAYMENT, ADDRESS = (
    Slot.EMAIL,
    Slot.NAME,
    Slot.ORDER,
    Slot.ITEMS,
    Slot.OPTIONS,
    Slot.REASON,
    Slot.PAYMENT,
    Slot.ADDRESS,
)

ASKS: dict[str, set[Slot]] = {
    "Email?": {EMAIL},
    "Could you please provide your email address, or your full name and zip code?": {EMAIL, NAME},
    "Please provide your email, or your first and last name along with your zip code, so I can look up your "
    "order and assist you further.": {EMAIL, NAME},
    "I can look you up by your first and last name and zip code. Could you provide those details?": {NAME},
    "To assist you, I need the following information:\n1. Your order ID\n2. Your email": {ORDER, EMAIL},
    "To proceed with the exchange, could you please provide me with the order ID?": {ORDER},
    "I see #W1234567 and #W7654321. Could you let me know which of these it is?": {ORDER},
    "Please specify the reason so I can proceed.": {REASON},
    'Is it "no longer needed" or "ordered by mistake"?': {REASON},
    "Please confirm the cancellation reason.": {REASON},
    "Would you like the refund to your gift card or to your credit card?": {PAYMENT},
    "Once you provide the reason, I will cancel it.": {REASON},
    "Please share the new shipping address (street, city, state, zip code).": {ADDRESS},
    "What color would you like instead?": {OPTIONS},
    "Which items do you want to return?": {ITEMS},
    "The refund goes to your original payment method.": set(),
    "You will receive an email with instructions. Let me know if you need anything else!": set(),
    "I have verified your email and your zip code.": set(),
    "Your order number is #W1234567.": set(),
}


@pytest.mark.parametrize("text", ASKS)
def test_what_is_asked_for(text: str) -> None:
    assert parse_message(text).asked_slots == ASKS[text]


@pytest.mark.parametrize(
    "text",
    [
        "Do you confirm? (yes/no)",
        "Please reply 'yes' to proceed.",
        'Please confirm with a "yes" if you want me to go ahead.',
        "Shall I cancel it?",
        "Would you like me to proceed with the return?",
        "Is that correct?",
        "Please confirm if you want to proceed and provide the payment method.",
        "I would change the address to 1 Main Street, Tampa, FL, zip code 33601. OK?",
        "Once you confirm, I will proceed.",
        "Are you okay with this?",
        "If you'd like to cancel the whole order, please let me know.",
        "**Details:**\n- Order ID: #W1234567\n- Refund method: gift card\n\nDo you want to proceed?",
    ],
)
def test_requests_for_a_yes(text: str) -> None:
    heard = parse_message(text)
    assert heard.asks_for_confirmation
    assert not heard.is_lookup_offer
    assert heard.asked_slots <= {PAYMENT}


@pytest.mark.parametrize(
    "text",
    [
        "Can you confirm your email address?",
        "Could you confirm the reason for the cancellation?",
        "What would you like to do?",
        "How would you like to proceed?",
        "Which item would you like to return?",
        "Is there anything else I can help you with?",
        "Would you like me to transfer you to a human agent?",
        "I have confirmed that your order was cancelled.",
        "To proceed, I need your order number.",
        "",
    ],
)
def test_what_wants_no_yes(text: str) -> None:
    assert not parse_message(text).asks_for_confirmation


def test_an_offer_to_look_something_up_is_told_from_a_proposal() -> None:
    assert parse_message("Would you like me to check your orders?").is_lookup_offer
    assert parse_message("I can help you look up your orders. Would you like me to do that?").is_lookup_offer
    assert not parse_message("Would you like me to cancel it?").is_lookup_offer


def test_alternatives_are_a_choice() -> None:
    assert parse_message("Would you like to cancel it, or keep it?").has_alternative
    assert not parse_message("Would you like to cancel it? Reply yes or no.").has_alternative
    assert not parse_message("Shall I cancel it, or is there anything else I can do?").has_alternative


@pytest.mark.parametrize(
    "text",
    [
        "I cannot do that.",
        "Unfortunately, the order was shipped.",
        "Our policy does not allow it.",
        "This isn't eligible for a return.",
        "I must decline.",
        "I'm afraid that won't be possible.",
        "We regret to say that it is out of stock.",
        "Would you like me to escalate this to a human agent?",
    ],
)
def test_refusals(text: str) -> None:
    assert parse_message(text).is_refusal


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry to hear that.",
        "I apologize for the inconvenience.",
        "Please note that this cannot be undone.",
        "No further changes can be made, so it can't be modified again.",
        "Could you tell me why you cannot use it?",
    ],
)
def test_no_refusals(text: str) -> None:
    assert not parse_message(text).is_refusal


@pytest.mark.parametrize(
    "text",
    [
        "Your order has been cancelled.",
        "Done.",
        "That was taken care of.",
        "You will receive an email shortly.",
        "Is there anything else?",
        "If you have any other questions, feel free to ask!",
        "You're welcome! Have a great day!",
    ],
)
def test_closings(text: str) -> None:
    assert parse_message(text).is_closing


@pytest.mark.parametrize(
    "text",
    [
        "I have successfully verified your identity.",
        "I've located your account.",
        "Your order is currently being looked at.",
        "Once it is cancelled, the money goes back.",
        "If the order was shipped, it is not cancelled.",
    ],
)
def test_no_closings(text: str) -> None:
    assert not parse_message(text).is_closing


def test_transfers_that_happen_and_such_that_do_not() -> None:
    assert parse_message("YOU ARE BEING TRANSFERRED TO A HUMAN AGENT. PLEASE HOLD ON.").is_transfer
    assert parse_message("I've transferred your request to a human agent who can assist you.").is_transfer
    assert not parse_message("I can transfer you to a human agent.").is_transfer
    assert not parse_message("If you wish, I will transfer you to a human agent.").is_transfer


@pytest.mark.parametrize(
    "text",
    ["#W1234567", "W1234567", "w1234567", "**#W1234567**", "`#W1234567`", "order 1234567,", "(#W1234567)."],
)
def test_ids_of_orders_however_they_are_written(text: str) -> None:
    assert list(find_ids(text)) == ["#W1234567"]


def test_the_end_of_a_long_message_is_heard_and_ids_in_all_of_it() -> None:
    heard = parse_message(f"{'word ' * 3_000} #W1234567 {'word ' * 3_000}. Do you confirm?")
    assert heard.asks_for_confirmation
    assert heard.ids == {"#W1234567"}
