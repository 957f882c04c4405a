"""Messages of agents in five domains, each with the reaction that a user of the domain's script should show.

Reactions: the names of the facts that are told, `yes`, `no`, `goal` (says again what is wanted), `insist`
(asks again after a refusal), `unknown`, `wait`, `end` or `transfer`. `HELD_OUT` was not used while the user's
rules were written.
"""

from pytest_trace2evolve.records.task import SlotScript

SCRIPTS = {
    "hotel": SlotScript(
        goal="Cancel my booking B17 and get a refund.",
        opening="Hello, I would like to cancel my booking.",
        knows={
            "name": "Ann Lee",
            "booking_id": "B17",
            "email": "ann.lee@example.com",
            "check_in_date": "2025-06-03",
        },
    ),
    "bank": SlotScript(
        goal="Block my debit card ending in 4471, because it was stolen.",
        opening="My debit card was stolen, please block it.",
        knows={
            "name": "Omar Haddad",
            "account_number": "DE55001",
            "date_of_birth": "1984-02-11",
            "card_last_four": "4471",
            "security_answer": "Biscuit",
        },
    ),
    "telecom": SlotScript(
        goal="Upgrade my plan to Unlimited Plus from next month.",
        opening="I want to upgrade my phone plan.",
        knows={
            "phone_number": "+1 555 0134",
            "account_pin": "8812",
            "name": "Tara Singh",
            "plan": "Unlimited Plus",
            "start": "next month",
        },
    ),
    "clinic": SlotScript(
        goal="Move my appointment with Dr. Weiss to Friday afternoon.",
        opening="I need to move my appointment with Dr. Weiss.",
        knows={
            "patient_name": "Mia Kern",
            "patient_id": "P-2041",
            "date_of_birth": "1990-07-30",
            "insurance": "Aurora Health",
            "preferred_time": "Friday at 3 pm",
        },
    ),
    "shop": SlotScript(
        goal="Return the blue kettle from order W9921 and get the money back to my credit card.",
        opening="I would like to return a kettle.",
        knows={
            "order_number": "W9921",
            "email": "leo@example.org",
            "zip_code": "60614",
            "reason": "it leaks",
            "refund_method": "original credit card",
        },
    ),
}

MESSAGES: tuple[tuple[str, str, str], ...] = (
    # hotel
    ("hotel", "I'd be happy to help with that! Could you please provide your booking ID?", "booking_id"),
    ("hotel", "Sure. What name is the reservation under?", "name"),
    ("hotel", "Can I have the booking reference and the email address on file?", "booking_id email"),
    ("hotel", "Before I cancel, may I confirm: you want to cancel booking B17 for Ann Lee? (yes/no)", "yes"),
    ("hotel", "I found booking B18 for 2 nights. Shall I cancel B18?", "no"),
    (
        "hotel",
        "Your booking B17 has been cancelled and the refund is on its way. Is there anything else?",
        "end",
    ),
    ("hotel", "One moment please while I look up your reservation.", "wait"),
    ("hotel", "Would you like me to upgrade you to a suite instead?", "no"),
    ("hotel", "I'm sorry, but this rate is non-refundable, so I can't refund it.", "insist"),
    (
        "hotel",
        "The cancellation fee is 20 euros. Do you want me to proceed with cancelling booking B17?",
        "yes",
    ),
    (
        "hotel",
        "To verify your identity, please tell me your full name and your check-in date.",
        "name check_in_date",
    ),
    ("hotel", "Thanks, Ann. Shall I go ahead?", "yes"),
    ("hotel", "What is your loyalty card number?", "unknown"),
    ("hotel", "Welcome to Grand Hotel! How may I assist you today?", "goal"),
    ("hotel", "I have transferred you to a human agent. Please hold on.", "transfer"),
    ("hotel", "All done! B17 is cancelled. Have a wonderful day!", "end"),
    ("hotel", "Could you share the email you used to book so I can find the reservation?", "email"),
    (
        "hotel",
        "Please confirm that I should cancel booking **B17** (Ann Lee, 3 June) and refund 240 EUR.",
        "yes",
    ),
    # bank
    (
        "bank",
        "I'm sorry to hear that. For security, please provide your full name and date of birth.",
        "name date_of_birth",
    ),
    ("bank", "What are the last four digits of the card?", "card_last_four"),
    ("bank", "Can you give me your account number?", "account_number"),
    ("bank", "Thank you. And the answer to your security question?", "security_answer"),
    ("bank", "I can block card 4471 now. Shall I proceed?", "yes"),
    ("bank", "I see a card ending in 9902. Should I block the card 9902?", "no"),
    ("bank", "Your card ending in 4471 has been blocked. A new card will arrive in 5 days.", "end"),
    ("bank", "Would you like to apply for a credit card while you are here?", "no"),
    ("bank", "Let me check that for you.", "wait"),
    ("bank", "Unfortunately I am not able to block cards in this channel.", "insist"),
    ("bank", "Do you want me to order a replacement card as well as blocking the stolen one?", "yes"),
    ("bank", "When were you born?", "date_of_birth"),
    ("bank", "What's your mother's maiden name?", "unknown"),
    ("bank", "Just to double-check: block the debit card ending 4471, correct?", "yes"),
    ("bank", "How can I help you with your account?", "goal"),
    ("bank", "Is there anything else I can do for you today, Omar?", "end"),
    ("bank", "May I have your DOB, please?", "date_of_birth"),
    ("bank", "I'll transfer you to our fraud specialist now; a human agent will take over.", "transfer"),
    # telecom
    ("telecom", "What's the phone number on the account?", "phone_number"),
    ("telecom", "Please enter your account PIN to continue.", "account_pin"),
    ("telecom", "Which plan would you like to move to?", "plan"),
    ("telecom", "When should the new plan start?", "start"),
    ("telecom", "You are moving to Unlimited Plus at $55/month. Do you agree?", "yes"),
    ("telecom", "I can offer you the Basic 5GB plan. Do you want that one?", "no"),
    ("telecom", "Your plan has been upgraded to Unlimited Plus. Enjoy!", "end"),
    ("telecom", "I am checking your eligibility now.", "wait"),
    ("telecom", "I'm afraid upgrades are not possible while a contract is running.", "insist"),
    ("telecom", "Could you verify the mobile number and your PIN?", "phone_number account_pin"),
    ("telecom", "Shall I switch your line to Unlimited Plus starting next month?", "yes"),
    ("telecom", "Would you like to add travel insurance for your device for $9?", "no"),
    ("telecom", "What is the IMEI of your device?", "unknown"),
    ("telecom", "Hi there, what can I do for you?", "goal"),
    ("telecom", "I need your name and phone number to pull up the account.", "name phone_number"),
    ("telecom", "That's everything set up. Anything else I can help with?", "end"),
    ("telecom", "To confirm, you would like to upgrade your plan? Reply YES to continue.", "yes"),
    ("telecom", "Should I cancel your contract?", "no"),
    # clinic
    ("clinic", "May I have the patient's name and date of birth?", "patient_name date_of_birth"),
    ("clinic", "What is your patient ID?", "patient_id"),
    ("clinic", "When would you like to come in?", "preferred_time"),
    ("clinic", "Dr. Weiss has a slot on Friday at 3 pm. Shall I book it?", "yes"),
    ("clinic", "Would you like to see Dr. Brown on Monday morning instead?", "no"),
    ("clinic", "Your appointment has been moved to Friday, 3 pm. See you then!", "end"),
    ("clinic", "Which insurance do you have?", "insurance"),
    ("clinic", "I cannot move appointments less than 24 hours ahead.", "insist"),
    ("clinic", "Please hold while I look at the doctor's calendar.", "wait"),
    ("clinic", "Do you have a referral number?", "unknown"),
    ("clinic", "Are you the patient with ID P-2042?", "no"),
    ("clinic", "Just to be sure, is the patient ID P-2041 right?", "yes"),
    ("clinic", "Good morning, City Clinic. How can I help?", "goal"),
    ("clinic", "I have rescheduled it. Is there something else you need?", "end"),
    (
        "clinic",
        "Could you tell me your insurance provider and your preferred time?",
        "insurance preferred_time",
    ),
    ("clinic", "Would Friday at 3 pm work for you?", "yes"),
    ("clinic", "Do you want me to cancel the appointment with Dr. Weiss?", "no"),
    ("clinic", "Which day and time would suit you best?", "preferred_time"),
    # shop
    ("shop", "Could you give me your order number?", "order_number"),
    ("shop", "What's the reason for the return?", "reason"),
    ("shop", "How would you like to be refunded?", "refund_method"),
    ("shop", "Please provide the email or the zip code on the order.", "email zip_code"),
    (
        "shop",
        "I can return the blue kettle from order W9921 to your original credit card. Do you confirm?",
        "yes",
    ),
    ("shop", "I found order W9922 with a toaster. Should I return it?", "no"),
    ("shop", "The return of the kettle is complete; you'll receive a label by email.", "end"),
    ("shop", "Why do you want to send it back?", "reason"),
    ("shop", "Would you prefer store credit? Shall I refund the amount as a gift card?", "no"),
    ("shop", "I'm unable to accept returns after 30 days.", "insist"),
    ("shop", "Give me a second, I'm pulling up your order.", "wait"),
    ("shop", "What colour is the toaster you bought?", "unknown"),
    ("shop", "Hello! What can I help you with today?", "goal"),
    ("shop", "Can you confirm your postal code?", "zip_code"),
    ("shop", "Is your email leo@example.org?", "yes"),
    ("shop", "Is there anything else you'd like help with?", "end"),
    ("shop", "Would you like to buy an extended warranty?", "no"),
    ("shop", "Ready to submit the return for the kettle? Just say yes.", "yes"),
)
"""The domain, the agent's first message after the opening, and the expected reaction."""

DEVELOPED = tuple(message for number, message in enumerate(MESSAGES) if number % 3 != 2)
HELD_OUT = tuple(message for number, message in enumerate(MESSAGES) if number % 3 == 2)
