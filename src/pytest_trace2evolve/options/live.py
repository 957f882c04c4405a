"""Options of live runs: who talks, how often, for how much, and what is kept."""

from typing import Any

from pytest_trace2evolve.option_types import MOST_SEED, amount, stages, temperature, whole

ROUTES = ("task", "turn")

LIVE: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ("--t2e-model",),
        {
            "dest": "t2e_model",
            "metavar": "MODEL",
            "help": "talk to this model: a name at an endpoint, or ./FOLDER",
        },
    ),
    (
        ("--t2e-user-model",),
        {
            "dest": "t2e_user_model",
            "metavar": "MODEL",
            "help": "model of the user simulator (default: the agent's)",
        },
    ),
    (
        ("--t2e-adapter",),
        {
            "dest": "t2e_adapter",
            "metavar": "PATH",
            "help": "a LoRA adapter that the agent's model, a folder, talks with",
        },
    ),
    (
        ("--t2e-route",),
        {
            "dest": "t2e_route",
            "choices": ROUTES,
            "help": "a routed candidate chooses an adapter once a task (default) or at each turn",
        },
    ),
    (
        ("--t2e-base-url",),
        {"dest": "t2e_base_url", "metavar": "URL", "help": "the model's endpoint (default: OPENAI_BASE_URL)"},
    ),
    (
        ("--t2e-user-base-url",),
        {
            "dest": "t2e_user_base_url",
            "metavar": "URL",
            "help": "the user model's endpoint (default: the agent's)",
        },
    ),
    (
        ("--t2e-key-var",),
        {
            "dest": "t2e_key_var",
            "metavar": "NAME",
            "help": "variable that holds the key (default: OPENAI_API_KEY)",
        },
    ),
    (
        ("--t2e-user-key-var",),
        {
            "dest": "t2e_user_key_var",
            "metavar": "NAME",
            "help": "the same for the user model (default: the agent's)",
        },
    ),
    (
        ("--t2e-temperature",),
        {
            "dest": "t2e_temperature",
            "metavar": "T",
            "type": temperature,
            "help": "the agent's temperature (default: 0)",
        },
    ),
    (
        ("--t2e-seed",),
        {
            "dest": "t2e_seed",
            "metavar": "N",
            "type": whole(-MOST_SEED, MOST_SEED),
            "help": "seed of trial 0; each further trial adds 1",
        },
    ),
    (
        ("--t2e-reasoning-effort",),
        {"dest": "t2e_reasoning_effort", "metavar": "LEVEL", "help": "sent to the agent's model"},
    ),
    (
        ("--t2e-extra-body",),
        {"dest": "t2e_extra_body", "metavar": "JSON", "help": "merged into the agent's requests"},
    ),
    (
        ("--t2e-fresh",),
        {
            "dest": "t2e_fresh",
            "action": "store_const",
            "const": True,
            "help": "make every live simulation again, beside those of earlier runs: a further draw",
        },
    ),
    (
        ("--t2e-max-cost",),
        {
            "dest": "t2e_max_cost",
            "metavar": "DOLLARS",
            "type": amount(1e9),
            "help": "stop before the run costs more, at the prices of prices.toml",
        },
    ),
    (
        ("--t2e-max-tokens",),
        {
            "dest": "t2e_max_tokens",
            "metavar": "N",
            "type": whole(1, 10**15),
            "help": "stop before the run uses more tokens, prompts and completions together",
        },
    ),
    (
        ("--t2e-max-minutes",),
        {
            "dest": "t2e_max_minutes",
            "metavar": "N",
            "type": amount(1e6),
            "help": "stop the run after so many minutes",
        },
    ),
    (
        ("--t2e-requests-per-minute",),
        {
            "dest": "t2e_requests_per_minute",
            "metavar": "N",
            "type": amount(1e6),
            "help": "rate limit of the whole run, all processes together",
        },
    ),
    (
        ("--t2e-call-timeout",),
        {
            "dest": "t2e_call_timeout",
            "metavar": "SECONDS",
            "type": amount(86_400),
            "help": "give up one try of a model call after this time and try again (default: 600)",
        },
    ),
    (
        ("--t2e-cache",),
        {
            "dest": "t2e_cache",
            "action": "store_const",
            "const": True,
            "help": "take models' answers from .trace2evolve/cache.sqlite where it has them, keep new ones",
        },
    ),
    (
        ("--t2e-record",),
        {
            "dest": "t2e_record",
            "metavar": "FILE",
            "help": "write all models' answers of this run to a cassette, a new file",
        },
    ),
    (
        ("--t2e-playback",),
        {
            "dest": "t2e_playback",
            "metavar": "FILE",
            "help": "take all models' answers from a cassette: no key, no endpoint (agent chat)",
        },
    ),
    (
        ("--t2e-confirm",),
        {
            "dest": "t2e_confirm",
            "metavar": "N",
            "type": whole(0, 10**6),
            "help": "fresh simulations that may confirm falls, both sides together (default: 640; 0: none)",
        },
    ),
    (
        ("--t2e-stages",),
        {
            "dest": "t2e_stages",
            "metavar": "N,N,…|default",
            "type": stages,
            "help": "live: add trials in stages and stop where the gate decides (default: 2,4,8)",
        },
    ),
    (
        ("--t2e-baseline-base-url",),
        {
            "dest": "t2e_baseline_base_url",
            "metavar": "URL",
            "help": "where fresh trials ask the baseline's model (default: the agent's, where it was that)",
        },
    ),
    (
        ("--t2e-baseline-key-var",),
        {
            "dest": "t2e_baseline_key_var",
            "metavar": "NAME",
            "help": "variable that holds the key for it (default: the agent's)",
        },
    ),
    (
        ("--t2e-concurrency",),
        {
            "dest": "t2e_concurrency",
            "metavar": "N",
            "type": whole(1, 4_096),
            "help": "simulations at once, a process (default: 16)",
        },
    ),
)
