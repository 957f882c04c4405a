"""Entry point of the pytest plugin: declares its options, and loads everything else only if they are used.

The inactive plugin must cost nothing, so this module and `options` import only the standard library and
pytest.
"""

import sys
from collections.abc import Generator

import pytest

from pytest_trace2evolve.plugin import options
from pytest_trace2evolve.session.option_table import stray_path


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the plugin's command-line options and ini keys."""
    options.add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks that third parties can implement."""
    from pytest_trace2evolve.plugin import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, object, object]:
    """End with status 4 and one line if a conftest file exits Python or has invalid hooks or options.

    Pytest reports ordinary errors of a conftest file, but these would end Python, mostly with status 1.
    """
    namespace = early_config.known_args_namespace
    is_active = options.has_options_in(namespace) or bool(early_config.getini("t2e_suites"))
    try:
        result = yield
        if is_active:
            parser.parse_known_args(args)  # finds an option that a conftest file declares a second time
        return result
    except (pytest.UsageError, pytest.exit.Exception, GeneratorExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        is_reported = getattr(error, "cause", None) is not None  # pytest wraps ordinary errors of the file
        if not is_active or is_reported or _only_reads_hooks(early_config):
            raise
        from pytest_trace2evolve.plugin.settings import usage_error
        from pytest_trace2evolve.utils.crashes import describe_error

        raise usage_error(f"a conftest.py cannot be loaded: {describe_error(error)}; correct it") from error


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Activate the plugin if one of its options or ini keys is given."""
    if not options.is_active(config) or _only_reads_hooks(config):
        return
    from pytest_trace2evolve.errors import ConfigError

    try:
        options.read_keys(config)
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from None
    from pytest_trace2evolve.plugin.case_fixtures import register
    from pytest_trace2evolve.plugin.items import PLUGIN_NAME

    if hasattr(config, "workerinput"):
        from pytest_trace2evolve.plugin.worker import Worker

        plugin_object: object = Worker(config)
    else:
        from pytest_trace2evolve.plugin.controller import Controller
        from pytest_trace2evolve.plugin.summary_writers import sanitize_terminal

        plugin_object = Controller(config)
        sanitize_terminal(config)
    config.pluginmanager.register(plugin_object, PLUGIN_NAME)
    register(config, plugin_object)
    if (config.option.t2e_evolve or config.option.t2e_improve is not None) and not hasattr(
        config, "workerinput"
    ):
        from pytest_trace2evolve.plugin.improve_option import register_improvement

        register_improvement(config)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | pytest.ExitCode | None:
    """Reject a command line that pytest would misread."""
    if _only_reads_hooks(config) or hasattr(config, "workerinput") or not options.is_active(config):
        return None
    if sys.stdout is None:
        from pytest_trace2evolve.utils.crashes import require_output

        require_output()
    invocation = config.invocation_params
    if stray_argument := stray_path([str(argument) for argument in invocation.args], invocation.dir):
        from pytest_trace2evolve.plugin.settings import usage_error

        name, path = stray_argument
        raise usage_error(f"{name} {path}: pytest reads this path as a test path; write {name}={path}")
    return None


@pytest.hookimpl(specname="pytest_cmdline_main")
def pytest_trace2evolve_workers(config: pytest.Config) -> None:
    """Start no workers of xdist if the session has only tasks, which the controller runs all at once."""
    if getattr(config.option, "numprocesses", None) and options.is_active(config):
        from pytest_trace2evolve.plugin.settings import has_only_suites

        if has_only_suites(config):
            config.option.dist, config.option.tx = "no", []


@pytest.hookimpl(wrapper=True, tryfirst=True, specname="pytest_cmdline_main")
def pytest_trace2evolve_crashes(
    config: pytest.Config,
) -> Generator[None, int | pytest.ExitCode | None, int | pytest.ExitCode | None]:
    """End with status 3 and one line after an error that pytest does not handle.

    Such errors occur in `pytest_configure`, `pytest_sessionfinish`, `pytest_terminal_summary` and
    `pytest_unconfigure`, and if the output cannot be written. Otherwise, Python would end with status 1.
    """
    try:
        status = yield
        if not _only_reads_hooks(config) and options.is_active(config):
            from pytest_trace2evolve.utils.crashes import flush_output

            flush_output()
        return status
    except (pytest.UsageError, pytest.exit.Exception, GeneratorExit):
        raise
    except BaseException as error:
        if _only_reads_hooks(config) or not options.is_active(config):
            raise
        if isinstance(error, KeyboardInterrupt) and hasattr(config, "workerinput"):
            raise  # the controller ends its workers this way
        from pytest_trace2evolve.utils.crashes import EXIT_CRASH, end_session

        if isinstance(error, SystemExit) and error.code == EXIT_CRASH:
            raise  # raised by `require_output`
        return end_session(error, config.rootpath)


def _only_reads_hooks(config: pytest.Config) -> bool:
    """Whether a command configures pytest only to read the project's hooks (`extensions.load_extensions`)."""
    return config.pluginmanager.hasplugin("trace2evolve-extensions")
