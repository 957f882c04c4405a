"""The agent. It follows rules, so that it works without a key. Return your own agent from `make` instead."""

import json
import re


def make(tools, candidate):
    # return my_agent(tools, prompt=candidate.prompt, model=candidate.model)  # for your own agent
    call, loans = {tool.__name__: tool for tool in tools}, []

    def run(message):
        if loans and message.startswith("Yes"):
            return f"Renewed: {call['renew_loan'](loan_id=loans[-1])}. Anything else?"
        loans.extend(re.findall(r"\bL\d+\b", message))
        if not loans:
            return "What is the number of the loan?"
        loan = json.loads(call["find_loan"](loan_id=loans[-1]))
        if "due" in message:
            return f"It is due in week {loan['due_week']}. Anything else?"
        if loan["reserved"] and "reserved" in candidate.prompt:
            return f"I am sorry, {loan['title']} is reserved, so I cannot renew it."
        return f"Shall I renew loan {loans[-1]}, {loan['title']}?"  # to break it, write "I renewed" instead

    return run
