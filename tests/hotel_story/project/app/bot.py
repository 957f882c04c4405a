import json

import openai


def make(tools, candidate):
    functions = {tool.__name__: tool for tool in tools}
    messages = [{"role": "system", "content": candidate.prompt}]
    settings = {"model": candidate.model or "hotel-small", "tools": [tool.schema for tool in tools]}

    def run(message):
        messages.append({"role": "user", "content": message})
        while True:
            reply = openai.chat.completions.create(messages=messages, **settings).choices[0].message
            messages.append(reply)
            if not reply.tool_calls:
                return reply.content
            for call in reply.tool_calls:
                result = functions[call.function.name](**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})

    return run
