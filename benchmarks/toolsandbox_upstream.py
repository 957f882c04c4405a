"""Plays scripts with ToolSandbox's own roles and evaluator; `toolsandbox.py` runs it in its environment.

python toolsandbox_upstream.py BRIDGE CLOCK SEED < scripts.jsonl > results.jsonl
python toolsandbox_upstream.py BRIDGE CLOCK cases < cases.jsonl > results.jsonl
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
    if seed == "cases":
        evaluate_cases(bridge)
        return
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


def evaluate_cases(bridge):
    """Evaluate cases of `toolsandbox_cases.py`."""
    for line in sys.stdin:
        case = json.loads(line)
        try:
            found = _evaluation(bridge, case).evaluate(_context(case["snapshots"]), 30)
            result = {
                "similarity": found.similarity,
                "milestones": [pair[1] for pair in found.milestone_mapping.values()],
                "minefields": found.minefield_similarity,
            }
        except Exception as error:
            result = {"error": type(error).__name__}
        print(json.dumps({"key": case["key"], **result}), flush=True)


def _context(snapshots):
    """An execution context with the history of some snapshots."""
    import polars
    from tool_sandbox.common.execution_context import DatabaseNamespace, ExecutionContext

    context = ExecutionContext()
    for namespace, schema in context.dbs_schemas.items():
        rows, previous = [], None
        for index, snapshot in enumerate(snapshots):
            table = snapshot[str(namespace)]
            if namespace == DatabaseNamespace.SANDBOX or table != previous:
                guard = [] if namespace == DatabaseNamespace.SANDBOX and index else [{}]
                empty = dict.fromkeys(schema)
                rows += [{**empty, **row, "sandbox_message_index": index} for row in [*guard, *table]]
            previous = table
        context._dbs[namespace] = polars.DataFrame(rows, schema=schema)
    assert DatabaseNamespace.SANDBOX in context._dbs
    return context


def _evaluation(bridge, case):
    from tool_sandbox.common.evaluation import Evaluation, MilestoneMatcher

    matchers = []
    for kind in ("milestones", "minefields"):
        graph = case[kind]
        milestones = [[_constraint(bridge, part) for part in parts] for parts in graph["milestones"]]
        matchers.append(MilestoneMatcher(*_milestones(milestones, graph["edges"])))
    return Evaluation(milestone_matcher=matchers[0], minefield_matcher=matchers[1])


def _milestones(milestones, edges):
    from tool_sandbox.common.evaluation import Milestone

    # The guards are among the constraints, so upstream must add none.
    made = [Milestone(snapshot_constraints=parts, guardrail_database_list=[]) for parts in milestones]
    return made, [tuple(edge) for edge in edges] or None


def _constraint(bridge, part):
    import functools

    import polars
    from tool_sandbox.common import evaluation, tool_trace_extractors
    from tool_sandbox.common.execution_context import DatabaseNamespace, ExecutionContext

    rules = {rule: getattr(evaluation, name) for name, rule in bridge.RULES.items()}
    measures = {measure: getattr(evaluation, name) for name, measure in bridge.MEASURES.items()}
    rule = rules[part["rule"]]
    if "extractor" in part:
        extractor = getattr(tool_trace_extractors, part["extractor"])
        rule = functools.partial(rule, fill_to=next(iter(part["rows"][0])), extractor=extractor)
    namespace = DatabaseNamespace[part["table"]]
    columns = {}
    for name, column in part.get("columns", {}).items():
        columns[name] = measures[column["measure"]]
        if column.get("tolerance"):
            limits = {
                key: float("inf") if value is None else value for key, value in column["tolerance"].items()
            }
            columns[name] = functools.partial(columns[name], atol_dict=limits)
    target = None
    if "rows" in part:
        schema = dict(ExecutionContext.dbs_schemas[namespace], sender=polars.String, recipient=polars.String)
        schema["tool_trace"] = polars.String
        target = polars.DataFrame(part["rows"], schema={name: schema[name] for name in part["rows"][0]})
    return evaluation.SnapshotConstraint(
        database_namespace=namespace,
        snapshot_constraint=rule,
        reference_milestone_node_index=part["reference"],
        target_dataframe=target,
        column_similarity_measure=columns,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
