"""Puts together what makes a run's simulations in one process."""

from collections.abc import Mapping

from pytest_trace2evolve.engine.participants import AgentFactory, ChatFactory, open_cache
from pytest_trace2evolve.engine.pool import Pool
from pytest_trace2evolve.engine.simulations import Live, Simulations
from pytest_trace2evolve.errors import ConfigError
from pytest_trace2evolve.evidence.account import Account
from pytest_trace2evolve.evidence.draws import FinishedStore
from pytest_trace2evolve.session.cassettes import recording
from pytest_trace2evolve.session.draws import Draws
from pytest_trace2evolve.session.estimate import expected_usage
from pytest_trace2evolve.session.live import CHAT
from pytest_trace2evolve.session.plan import Plan
from pytest_trace2evolve.session.trials import Runner
from pytest_trace2evolve.worlds.registry import Worlds


def start(
    plan: Plan,
    worlds: Worlds,
    agents: Mapping[str, AgentFactory],
    account: Account | None,
    draws: Draws,
    *,
    concurrency: int,
) -> Runner:
    """The runner of a plan, its pool's thread started.

    Args:
        plan: What to run.
        worlds: Opens worlds.
        agents: Who can talk, by name, agent `chat` apart.
        account: The run's, where it is live or confirms.
        draws: Where its simulations are stored.
        concurrency: Simulations at once.

    Raises:
        EndpointError: the key of a model is missing.
        ConfigError: a store of answers is damaged.
    """
    pool = Pool(concurrency)
    everyone, live = dict(agents), None
    sides = plan.confirm.sides if plan.confirm is not None and plan.confirm.possible else {}
    baselines = {suite: agents[plan.suites[suite].agent] for suite, party in sides.items() if not party.live}
    if plan.live is not None and account is not None:
        stores = {"cache": plan.project.answers_cache, "recording": recording(plan.run_folder)}
        try:
            everyone[CHAT] = own = ChatFactory(plan.live, pool, account, **stores)
            for suite, party in sides.items():
                if party.live is not None:
                    same = party.live == plan.live
                    baselines[suite] = own if same else ChatFactory(party.live, pool, account, **stores)
        except ConfigError:
            pool.close()
            raise
        live = Live(
            account,
            lost=FinishedStore(account.path.parent / "lost"),
            expected=expected_usage(plan),
        )
    simulations = Simulations(plan, worlds, everyone, pool, draws, live, baselines)
    return Runner(plan, worlds, simulations, account)


def refuse_damaged(plan: Plan) -> None:
    """See, where others will make the simulations, that the cache of answers can be used.

    Raises:
        ConfigError: it is damaged.
    """
    if plan.live is not None and plan.live.cache:
        open_cache(plan.project.answers_cache).close()
