"""The agent `chat` and its user, put together from models, worlds and candidates.

Apart from `live`, since it imports the openai client, which takes half a second.
"""

from pytest_trace2evolve.agents.chat import ChatAgent
from pytest_trace2evolve.agents.chat import system_prompt as agent_prompt
from pytest_trace2evolve.agents.solo import SoloChatAgent, solo_prompt
from pytest_trace2evolve.candidates import Candidate
from pytest_trace2evolve.models.chat import ChatModel
from pytest_trace2evolve.records.protocols import Agent, Meter, User, World
from pytest_trace2evolve.records.task import Task
from pytest_trace2evolve.users.chat import ChatUser
from pytest_trace2evolve.users.chat import system_prompt as user_prompt
from pytest_trace2evolve.users.dummy import DummyUser
from pytest_trace2evolve.workflow.live import LiveSettings
from pytest_trace2evolve.workflow.pool import Pool


class ChatFactory:
    """Makes the two who talk in a live simulation; their models are shared by all simulations.

    Raises:
        EndpointError: a key is missing.
    """

    def __init__(self, settings: LiveSettings, pool: Pool, meter: Meter) -> None:
        self._settings = settings
        self._agent = ChatModel(settings.agent, meter)
        self._user = self._agent if settings.user == settings.agent else ChatModel(settings.user, meter)
        for model in {self._agent, self._user}:
            pool.on_close(model.close)

    def __call__(
        self, task: Task, world: World, candidate: Candidate, trial: int, *, solo: bool = False
    ) -> tuple[Agent, User]:
        """The agent with the candidate's instruction, and the user of the task."""
        added = candidate.instruction, self._settings.extra_instruction
        if solo:
            prompt = solo_prompt(world.policy(solo=True), task.ticket or "", *added)
            tools = [*world.tools("assistant"), *world.tools("user")]
            return SoloChatAgent(self._agent, prompt, tools, trial=trial), DummyUser()
        prompt = agent_prompt(world.policy(), *added)
        agent = ChatAgent(self._agent, prompt, world.tools("assistant"), trial=trial)
        scenario = user_prompt(world.guidelines(), task.user_scenario)
        return agent, ChatUser(self._user, scenario, world.tools("user"), trial=trial)
