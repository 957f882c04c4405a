"""Stands in for ToolSandbox's process: two tools over one table, with the protocol of `bridge.py`."""

import json
import sys

tables = {}

for line in sys.stdin:
    request = json.loads(line)
    do, session = request["do"], request["session"]
    if do == "open":
        tables[session] = [{"lamp": False, "door": False}]
        answer = {}
    elif do == "close":
        tables.pop(session)
        answer = {}
    elif any(
        call["name"] == "set_door" and call["arguments"].get("on") == "die" for call in request["calls"]
    ):
        sys.exit(1)
    else:
        results, old = [], tables[session]
        for call in request["calls"]:
            name, arguments = call["name"], call["arguments"]
            content, error, refused = "None", False, ""
            if name == "find_shop":
                content, error, refused = "PermissionError: the network is not available", True, name
            elif name.startswith("get_"):
                content = repr(tables[session][0][name[4:]])
            elif tables[session][0][name[4:]] == arguments["on"]:
                content, error = "ValueError: already so", True
            else:
                tables[session] = [{**tables[session][0], name[4:]: arguments["on"]}]
            trace = json.dumps({"tool_name": name, "arguments": arguments, "result": content})
            results.append(
                {
                    "id": call["id"],
                    "content": content,
                    "error": error,
                    "trace": None if error else trace,
                    "refused": refused,
                }
            )
        changed = {} if tables[session] is old else {"SETTING": tables[session]}
        answer = {"results": results, "tables": changed}
    print(json.dumps(answer), flush=True)
