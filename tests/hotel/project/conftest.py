"""Registers the hotel's world and agents with pytest-trace2evolve."""

from hotel.agent import make_bot, make_idle
from hotel.world import HotelWorld


def pytest_t2e_worlds(config):
    return {"hotel": HotelWorld}


def pytest_t2e_agents(config):
    return {"bot": make_bot, "idle": make_idle}
