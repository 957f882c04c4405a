"""Plays scripts with ToolSandbox's own roles and evaluator; `toolsandbox.py` runs it in its environment.

python toolsandbox_upstream.py BRIDGE CLOCK SEED < scripts.jsonl > results.jsonl
"""

import importlib.util
import json
import random
import sys
from pathlib import Path


def _load(path):
    spec = importlib.util.spec_from_file_location("bridge", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(bridge_path, clock, seed):
    bridge = _load(bridge_path)
    bridge.freeze(float(clock))
    from openai.types.chat.chat_completion_message_tool_call import ChatCompletionMessageToolCall, Function
    from tool_sandbox.common.execution_context import RoleType, get_current_context
    from tool_sandbox.common.message_conversion import Message, openai_tool_call_to_python_code
    from tool_sandbox.common.tool_discovery import ToolBackend
    from tool_sandbox.roles.base_role import BaseRole
    from tool_sandbox.roles.execution_environment import ExecutionEnvironment
    from tool_sandbox.scenarios import named_scenarios
    from tool_sandbox.tools import rapid_api_search_tools

    server = bridge.Server.__new__(bridge.Server)
    server.wifi, server.answers = rapid_api_search_tools.get_wifi_status, bridge.Answers(Path("/nonexistent"))
    rapid_api_search_tools.rapid_api_get_request = server.request

    class Scripted(BaseRole):
        def __init__(self, role, steps):
            self.role_type, self.steps, self.count = role, list(steps), 0

        def respond(self, ending_index=None):
            step = self.steps.pop(0) if self.steps else {"say": "Done."}
            other = RoleType.USER if self.role_type == RoleType.AGENT else RoleType.AGENT
            if "say" in step:
                self.add_messages([Message(sender=self.role_type, recipient=other, content=step["say"])])
                return
            context, messages = get_current_context(), []
            for call in step["calls"]:
                self.count += 1
                tool_call = ChatCompletionMessageToolCall(
                    id=f"call_{self.count}",
                    type="function",
                    function=Function(name=call["name"], arguments=json.dumps(call["arguments"])),
                )
                own = (
                    context.get_execution_facing_tool_name(call["name"])
                    if self.role_type == RoleType.AGENT
                    else None
                )
                messages.append(
                    Message(
                        sender=self.role_type,
                        recipient=RoleType.EXECUTION_ENVIRONMENT,
                        content=openai_tool_call_to_python_code(
                            tool_call, set(type(self).get_available_tools_of(self)), own
                        ),
                        openai_tool_call_id=tool_call.id,
                        openai_function_name=call["name"],
                    )
                )
            self.add_messages(messages)

        def get_available_tools_of(self):
            tools = get_current_context().get_available_tools(
                scrambling_allowed=self.role_type == RoleType.AGENT
            )
            return [name for name, tool in tools.items() if self.role_type in tool.visible_to]

    random.seed(int(seed))
    scenarios = named_scenarios(preferred_tool_backend=ToolBackend.DEFAULT)
    bases = sorted(
        (name for name, item in scenarios.items() if "NO_DISTRACTION_TOOLS" in map(str, item.categories))
    )
    for line in sys.stdin:
        script = json.loads(line)
        name = script["scenario"]
        scenario = scenarios[name]
        bridge.ids["scope"] = max((base for base in bases if name.startswith(base)), key=len)
        bridge.ids["count"] = 0
        roles = {
            RoleType.USER: Scripted(RoleType.USER, script["user"]),
            RoleType.EXECUTION_ENVIRONMENT: ExecutionEnvironment(),
            RoleType.AGENT: Scripted(RoleType.AGENT, script["agent"]),
        }
        try:
            context = scenario.play(roles=roles, scenario_name=name)
            found = scenario.evaluation.evaluate(context, scenario.max_messages)
            result = {
                "similarity": found.similarity,
                "milestones": found.milestone_similarity,
                "minefields": found.minefield_similarity,
                "first": scenario.starting_context.first_user_sandbox_message_index,
                "mapping": {index: list(pair) for index, pair in found.milestone_mapping.items()},
                "messages": context.max_sandbox_message_index,
            }
        except Exception as error:
            result = {"similarity": 0.0, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps({"key": script["key"], **result}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
